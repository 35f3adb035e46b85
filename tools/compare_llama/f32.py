#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file again with all its tensors in f32: the same model without its blocks.

Needs the package gguf from PyPI. Usage: f32.py IN.gguf OUT.gguf
"""
import sys

import gguf


def copy_fields(reader, writer):
    for name, field in reader.fields.items():
        # The writer has its own of these.
        if name.startswith('GGUF.') or name == 'general.architecture':
            continue
        value, kind = field.contents(), field.types[0]
        if name == 'general.file_type':
            value = int(gguf.LlamaFileType.ALL_F32)
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=inner)


def main(arguments):
    if len(arguments) != 2 or arguments[0].startswith('-'):
        sys.stderr.write('usage: f32.py IN.gguf OUT.gguf\n')
        return 2
    reader = gguf.GGUFReader(arguments[0])
    writer = gguf.GGUFWriter(arguments[1], reader.fields['general.architecture'].contents())
    copy_fields(reader, writer)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
