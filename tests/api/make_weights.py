#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes rows of each quantised weight type with the f32 that GGUF's own package makes of them.

For test-api-weights, which compares what embed makes of the rows. Bytes are random, scales and minima
are zeros of both signs, negative, subnormal, of the size that models have, and large ones.
tests/data/weights.bin is made by: make_weights.py --out tests/data/weights.bin --seed 5
Needs the packages gguf and numpy; without them it says so and exits with 77.

The file holds, little-endian, for each type: u32 tamis_weight_type, u32 rows, u32 elements of a row,
u32 bytes of a row, the rows' bytes, then their f32.
"""
import argparse
import struct
import sys

# (tamis_weight_type, GGUF's name, elements of a row, f16 places in a block)
TYPES = [(3, 'Q8_0', 96, [0]), (4, 'Q4_0', 96, [0]), (5, 'Q4_1', 96, [0, 2]), (6, 'Q5_0', 96, [0]),
         (7, 'Q4_K', 512, [0, 2]), (8, 'Q6_K', 512, [208]), (9, 'Q5_1', 96, [0, 2]),
         (10, 'Q5_K', 512, [0, 2]), (11, 'Q3_K', 512, [108]), (12, 'Q2_K', 512, [80, 82]),
         (13, 'IQ4_NL', 96, [0]), (14, 'IQ4_XS', 512, [0]), (15, 'MXFP4', 96, [])]
ROWS = 3
SCALES = [0.0, -0.0, 6e-8, -3e-6, 6.1e-5, 300.0, -4096.0, 65504.0]
POWERS = [120, 0, 123, 1, 117, 2, 135, 142]  # of MXFP4; 0 and 1 make subnormal numbers


def rows_of(numpy, gguf, random, name, elements, places):
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = random.integers(0, 256, (ROWS * elements // block, size), dtype=numpy.uint8)
    for i, data in enumerate(blocks):
        for place in places:
            scale = SCALES[(i + place) % len(SCALES)] if i % 2 else random.normal() * 0.02
            data[place:place + 2] = numpy.frombuffer(numpy.float16(scale).tobytes(), numpy.uint8)
        if name == 'MXFP4':
            data[0] = POWERS[i % len(POWERS)]
    return blocks.reshape(ROWS, -1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--out', required=True)
    parser.add_argument('--seed', type=int, required=True)
    args = parser.parse_args()
    try:
        import gguf
        import numpy
    except ImportError as error:
        print(f'skipped: {error}')
        return 77
    random = numpy.random.default_rng(args.seed)
    with open(args.out, 'wb') as out:
        for kind, name, elements, places in TYPES:
            rows = rows_of(numpy, gguf, random, name, elements, places)
            wide = gguf.dequantize(rows, gguf.GGMLQuantizationType[name])
            assert wide.shape == (ROWS, elements) and wide.dtype == numpy.float32
            out.write(struct.pack('<4I', kind, ROWS, elements, rows.shape[1]))
            out.write(rows.tobytes() + wide.astype('<f4').tobytes())
    return 0


if __name__ == '__main__':
    sys.exit(main())
