#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the hot CUDA kernels take of an H200's multiprocessor: a Markdown table on standard output.

Usage: gpu_resources.py [NVCC [FILE.cu...]]

NVCC (default: nvcc) compiles the kernel files for compute capability 9.0, head dim 128 alone; FILE
names some of them, default: all that have hot kernels. Needs a C compiler too (CC, default: cc), for
the sizes that the host asks for (cuda_kernels/args.h).
Exit status: 0; 1 with one line that says what went wrong; 2 for wrong usage.
"""
import os
import re
import subprocess
import sys
import tempfile

KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'cuda_kernels')

# Kernel file, name as an expression, threads and dynamic shared memory of a block as C has them:
# decode of groups up to 8 heads over 32768 tokens in pages of 16.
DECODE = '32u * CU_ATTEND_WARPS', 'CU_ATTEND_DECODE_SHARED(128u)'
TILES = '32u * CU_ATTEND_TILE_WARPS', 'CU_ATTEND_TILE_SHARED(128u, CU_ATTEND_TILE_WARPS)'
KEYS = '4u * 32768u / 16u'
HOT = (
    ('attend_mma.cu', r'attend_(decode|logits)_(f16|bf16)_d128', *DECODE),
    ('attend_mma.cu', r'attend_tiles_(f16|bf16)_d128', *TILES),
    ('attend_mma.cu', r'attend_join_d128', '32u * CU_ATTEND_JOIN_WARPS', '0u'),
    ('attend.cu', r'attend_decode_f32_d128_g[148]', '32u * CU_ATTEND_WARPS', '0u'),
    ('sparse_attend.cu', r'score_select_(f16|bf16|f32)_d128', 'CU_SCORE_THREADS', KEYS),
    ('score.cu', r'score_pages_(f16|bf16|f32)_d128', 'CU_SCORE_THREADS', '2u * 8u * 128u * 4u'),
    ('select.cu', r'select\w*', 'CU_SELECT_THREADS', KEYS),
    ('linear.cu', r'linear_rows_(f16|bf16)_r[18]', 'CU_LINEAR_FEW_THREADS', '0u'),
    ('linear_mma.cu', r'linear_mma_(f16|bf16)_r16', 'CU_LINEAR_MMA_THREADS',
     'CU_LINEAR_MMA_SHARED(16u)'),
    ('linear_mma.cu', r'linear_mma_(f16|bf16)_r32', 'CU_LINEAR_MMA_THREADS',
     'CU_LINEAR_MMA_SHARED(32u)'),
)

# Of a multiprocessor of compute capability 9.0 (CUDA C++ Programming Guide, technical
# specifications); a block takes 1 KiB of shared memory for itself.
REGISTERS, WARPS, BLOCKS, SHARED, SHARED_OF_BLOCK = 65536, 64, 32, 228 << 10, 1 << 10


class Failed(Exception):
    pass


def run(command, **options):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              **options)
    except OSError as error:
        raise Failed('%s: %s' % (command[0], error.strerror)) from error
    if done.returncode:
        raise Failed('%s: %s' % (' '.join(command[:2]), ' '.join(done.stdout.split())[:300]))
    return done.stdout


def sizes(folder):
    """(threads, dynamic bytes) of each of HOT."""
    prints = ''.join('printf("%%u %%u\\n", (unsigned)(%s), (unsigned)(%s));\n' % hot[2:]
                     for hot in HOT)
    source = '#include "args.h"\n#include <stdio.h>\nint main(void) {\n%sreturn 0;\n}\n' % prints
    program = os.path.join(folder, 'sizes')
    run([os.environ.get('CC', 'cc'), '-x', 'c', '-I', KERNELS, '-o', program, '-'], input=source)
    return [tuple(int(word) for word in line.split()) for line in run([program]).splitlines()]


def compile_kernels(nvcc, file, folder):
    """{kernel: (registers, spilled bytes, static shared bytes)} by ptxas."""
    said = run([nvcc, '-cubin', '-std=c++17', '-O3', '-arch=sm_90a', '-Xptxas', '-v',
                '-DONLY_DIM_128', '-I', KERNELS, '-o', os.path.join(folder, 'out.cubin'),
                os.path.join(KERNELS, file)])
    found = {}
    for part in re.split(r"Compiling entry function '", said)[1:]:
        name = part.split("'")[0]
        used = int(re.search(r'Used (\d+) registers', part)[1])
        spilled = sum(int(n) for n in re.findall(r'(\d+) bytes spill (?:stores|loads)', part))
        static = re.search(r'(\d+) bytes smem', part)
        found[name] = used, spilled, int(static[1]) if static else 0
    return found


def occupancy(registers, shared, threads):
    """(blocks of a multiprocessor, what bounds them)."""
    warps = threads // 32
    of_warp = -(-registers * 32 // 256) * 256
    bounds = {'warps': WARPS // warps, 'registers': REGISTERS // of_warp // 4 * 4 // warps,
              'shared memory': SHARED // (-(-(shared + SHARED_OF_BLOCK) // 128) * 128),
              'blocks': BLOCKS}
    least = min(bounds, key=bounds.get)
    return bounds[least], least


def table(nvcc, files):
    print('| kernel | threads | registers | spilled bytes | shared bytes | blocks | warps of 64 | '
          'bounded by |\n|%s' % ('---|' * 8))
    with tempfile.TemporaryDirectory() as folder:
        wanted, built = sizes(folder), {}
        for (file, name, *_), (threads, dynamic) in zip(HOT, wanted):
            if files and file not in files:
                continue
            if file not in built:
                built[file] = compile_kernels(nvcc, file, folder)
            there = [kernel for kernel in built[file] if re.fullmatch(name, kernel)]
            if not there:
                raise Failed('%s has no kernel %s' % (file, name))
            for kernel in sorted(there):
                registers, spilled, static = built[file][kernel]
                blocks, bound = occupancy(registers, static + dynamic, threads)
                print('| %s | %d | %d | %d | %s | %d | %d | %s |' % (
                    kernel, threads, registers, spilled, '{:,}'.format(static + dynamic), blocks,
                    blocks * threads // 32, bound), flush=True)


def main(words):
    nvcc, files = (words or ['nvcc'])[0], words[1:]
    unknown = [file for file in files if file not in {hot[0] for hot in HOT}]
    if nvcc.startswith('-') or unknown:
        print(__doc__.strip(), file=sys.stdout if words == ['--help'] else sys.stderr)
        return 0 if words == ['--help'] else 2
    try:
        table(nvcc, files)
    except Failed as error:
        print('gpu_resources.py: %s' % error, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
