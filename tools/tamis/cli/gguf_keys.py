#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gguf_keys.py IN OUT NAME=VALUE...: a copy of a GGUF file with more keys; whole numbers become u32,
those with a point f32, true and false bool, other values strings. The new keys stand in front. A
last one fills them up to a multiple of the alignment, so that all that follows stays aligned."""
import re
import struct
import sys

ALIGNMENT = 32


def text(value):
    return struct.pack('<Q', len(value)) + value


def key(name, value):
    if value.isdigit():
        return text(name) + struct.pack('<II', 4, int(value))
    if re.fullmatch(rb'\d+\.\d+', value):
        return text(name) + struct.pack('<If', 6, float(value))
    if value in (b'true', b'false'):
        return text(name) + struct.pack('<I?', 7, value == b'true')
    return text(name) + struct.pack('<I', 8) + text(value)


def main():
    source, target = sys.argv[1:3]
    keys = [key(*argument.encode().split(b'=', 1)) for argument in sys.argv[3:]]
    bytes_ = sum(map(len, keys)) + len(key(b'test.fill', b''))
    keys.append(key(b'test.fill', b'-' * (-bytes_ % ALIGNMENT)))
    with open(source, 'rb') as file:
        head, rest = file.read(24), file.read()
    magic, version, tensors, count = struct.unpack('<4sIQQ', head)
    with open(target, 'wb') as file:
        file.write(struct.pack('<4sIQQ', magic, version, tensors, count + len(keys)))
        file.write(b''.join(keys) + rest)


main()
