#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPUs that are not here, and what their compilers make of an OpenCL program (gpu_compilers.py).

Intel: ocloc with IGC, the compiler inside their driver. AMD: clang with ROCm's device libraries, as
their driver has. NVIDIA: clang with libclc makes PTX, which their own assembler compiles; their
driver's front end is another one.
"""
import glob
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter, namedtuple

import gpu_resources


class Failed(Exception):
    pass


# What a compiler made of a kernel. width: work-items that run in step; registers of one of them
# (Intel: of a thread); spills: registers (NVIDIA: bytes) that go to memory; scalars: AMD's scalar
# registers that go to lanes of vector registers; private and local: bytes of a work-item and of a
# work-group; loads: {bytes that a work-item gets of one load from global memory: how many};
# barriers: instructions; flight: bytes that a work-item has on their way from global memory at once,
# at most, in the order of the instructions (AMD alone: theirs say what they wait for; else 0).
Kernel = namedtuple('Kernel', 'width registers spills scalars private local loads barriers flight',
                    defaults=[0])

# What a GPU says of itself by OpenCL (tests/cl_programs/driver.h), and what finds room on one unit
# of it: a unit is what shares local memory. most: waves (threads, warps) at once; groups:
# work-groups at once, `barred` of those that have barriers; local: bytes, in steps of `grain`.
Target = namedtuple('Target', 'name product vendor units group cl_local unit most groups barred '
                              'local grain registers')

# Registers: of a work-item on a SIMD when one wave has it all, the step in which waves get them,
# SIMDs of a unit, whether scalar registers bound waves, too. A thread of Intel has 128 in any case.
Registers = namedtuple('Registers', 'all step simds scalar')
SCALARS = ((80, 10), (88, 9), (100, 8), (128, 7))  # (at most so many of a wave, waves of a SIMD)
KIB = 1 << 10
INTEL, AMD, NVIDIA = 'Intel', 'AMD', 'NVIDIA'

# Sources. Intel: the table of their GPU Occupancy Calculator (oneAPI-samples), and for gen 9 "The
# Compute Architecture of Intel Processor Graphics Gen9". AMD: the instruction set documents of Vega
# 7nm, CDNA 2, CDNA 3 and RDNA 2, and LLVM's AMDGPUBaseInfo for steps and scalar registers. NVIDIA:
# CUDA C++ Programming Guide, technical specifications.
TARGETS = {target.name: target for target in (
    Target('skl', 'gen 9', INTEL, 24, 256, 64 * KIB, 'subslice', 56, 56, 16, 64 * KIB, KIB, None),
    Target('tgllp', 'Xe-LP', INTEL, 96, 512, 64 * KIB, 'dual subslice', 112, 112, 32, 128 * KIB,
           KIB, None),
    Target('dg2-g10', 'Arc A770', INTEL, 512, 1024, 64 * KIB, 'Xe core', 128, 128, 32, 128 * KIB,
           KIB, None),
    Target('pvc', 'Max 1550', INTEL, 1024, 1024, 128 * KIB, 'Xe core', 64, 64, 32, 128 * KIB, KIB,
           None),
    Target('gfx906', 'MI50', AMD, 60, 256, 64 * KIB, 'CU', 40, 40, 16, 64 * KIB, 512,
           Registers(256, 4, 4, True)),
    Target('gfx90a', 'MI200', AMD, 104, 256, 64 * KIB, 'CU', 32, 32, 16, 64 * KIB, 512,
           Registers(512, 8, 4, True)),
    Target('gfx940', 'MI300', AMD, 228, 256, 64 * KIB, 'CU', 32, 32, 16, 64 * KIB, 512,
           Registers(512, 8, 4, True)),
    Target('gfx1030', 'RX 6900 XT', AMD, 40, 256, 64 * KIB, 'WGP', 64, 64, 32, 128 * KIB, 512,
           Registers(1024, 16, 4, False)),
    Target('gfx1036', 'Ryzen 7000', AMD, 1, 256, 64 * KIB, 'WGP', 64, 64, 32, 128 * KIB, 512,
           Registers(1024, 16, 4, False)),
    Target('sm_80', 'A100', NVIDIA, 108, 1024, 48 * KIB, 'SM', 64, 32, 32, 164 * KIB, 128, None),
    Target('sm_90', 'H100', NVIDIA, 132, 1024, 48 * KIB, 'SM', 64, 32, 32, 228 * KIB, 128, None),
)}

# Of each GPU: units, GB/s of its memory. Data sheets: Intel's ARK (Core i7-6700 with two channels of
# DDR4-2133, i7-1185G7 with LPDDR4x-4267, Arc A770, Max 1550), AMD's (MI50; MI250, of which a GCD has half;
# MI300A; RX 6900 XT; Ryzen 7000 with two channels of DDR5-5200), NVIDIA's (A100 with 40 GB, H100 SXM).
MEMORY = {'skl': (3, 34.1), 'tgllp': (6, 68.3), 'dg2-g10': (32, 560), 'pvc': (128, 3277),
          'gfx906': (60, 1024), 'gfx90a': (104, 1638), 'gfx940': (228, 5300), 'gfx1030': (40, 512),
          'gfx1036': (1, 83.2), 'sm_80': (108, 1555), 'sm_90': (132, 3350)}

# As the drivers spell them: platform, vendor, extensions.
CL_NAMES = {
    INTEL: ('Intel(R) OpenCL Graphics', 'Intel(R) Corporation',
            'cl_khr_byte_addressable_store cl_khr_fp16 cl_khr_subgroups cl_intel_subgroups '
            'cl_intel_required_subgroup_size cl_intel_subgroups_short'),
    AMD: ('AMD Accelerated Parallel Processing', 'Advanced Micro Devices, Inc.',
          'cl_khr_byte_addressable_store cl_khr_fp16 cl_khr_subgroups '
          'cl_amd_device_attribute_query'),
    NVIDIA: ('NVIDIA CUDA', 'NVIDIA Corporation',
             'cl_khr_byte_addressable_store cl_khr_global_int32_base_atomics '
             'cl_nv_device_attribute_query'),
}
LEAST_SUB_GROUPS = {'pvc': 16}  # work-items; of Intel's others 8
WAVES = {INTEL: 'threads', AMD: 'waves', NVIDIA: 'warps'}


def cl_words(target):
    """What cl-programs is told of the GPU."""
    platform, vendor, extensions = CL_NAMES[target.vendor]
    return [platform, vendor, target.product, extensions, str(target.units), str(target.group),
            str(target.cl_local), str(LEAST_SUB_GROUPS.get(target.name, 8))]


# ---- What is needed ------------------------------------------------------------------------------


def find_bitcode():
    for folder in ('/usr/lib/x86_64-linux-gnu', '/usr/lib', '/opt/rocm'):
        path = os.path.join(folder, 'amdgcn', 'bitcode')
        if os.path.exists(os.path.join(path, 'opencl.bc')):
            return path
    return None


def find_ptxas():
    return os.environ.get('PTXAS') or shutil.which('ptxas') or shutil.which(
        'ptxas', path='/usr/local/cuda/bin')


LIBCLC = '/usr/lib/clc/nvptx64--nvidiacl.bc'
NEEDS = {
    INTEL: (('ocloc', 'intel-opencl-icd', lambda: shutil.which('ocloc')),),
    AMD: (('clang-15', 'clang-15', lambda: shutil.which('clang-15')),
          ("ROCm's device libraries", 'rocm-device-libs', find_bitcode)),
    NVIDIA: (('clang-15', 'clang-15', lambda: shutil.which('clang-15')),
             ('libclc', 'libclc-15', lambda: os.path.exists(LIBCLC)),
             ("ptxas of CUDA's toolkit", None, find_ptxas)),
}


def lacks(target):
    """(what, package or None) that its compiler needs and that is not here."""
    return [(what, package) for what, package, find in NEEDS[target.vendor] if not find()]


def read(path):
    with open(path, encoding='utf-8', errors='replace') as file:
        return file.read()


def run(command, folder, **environment):
    """What it says."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors='replace', cwd=folder, check=False,
                          env={**os.environ, **environment})
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if 'error' in line.lower()]
        raise Failed(' '.join((said or done.stdout.split())[:4])[:600])
    return done.stdout


def version(target):
    """Of the compiler."""
    with tempfile.TemporaryDirectory() as folder:
        if target.vendor == INTEL:
            run(['ocloc', 'query', 'OCL_DRIVER_VERSION'], folder)
            return 'ocloc ' + read(os.path.join(folder, 'OCL_DRIVER_VERSION')).strip('\0\n ')
        said = run(['clang-15', '--version'], folder)
        return 'clang ' + re.search(r'version (\S+)', said)[1]


# ---- Intel ---------------------------------------------------------------------------------------

# Patch tokens of a kernel, as ocloc prints them (PTM.txt): local memory; memory of a thread for
# spills and arrays; memory of a work-item for arrays; how it runs.
LOCAL_SURFACE, SCRATCH, PRIVATE, ENVIRONMENT = 15, 18, 38, 23
TOKEN = re.compile(r'Token (\d+)\n\t4 Size \d+\n\tHex ([0-9a-f ]+)')
SPILLED = re.compile(r'kernel (\w+) +compiled SIMD\d+ allocated \d+ regs and spilled around (\d+)')

# Messages of gen 9 and Xe-LP, and blocks of Arc: the low byte of the descriptor is the surface, 254
# local memory, 253 and 255 addresses; blocks of these are the kernel's arguments.
OLD_LOAD = re.compile(
    r'(0x[0-9A-F]{8})\s+(?:\{[^}]*\} *)?// wr:(\d+)\S* rd:(\d+);(?: hdc\.\w+;)? (.*)')
# A gather by addresses says nothing of its width: it sends 8 bytes for each work-item in `wr`
# registers and gets `rd` registers.
LOCAL, ADDRESSES = 0xfe, (0xfd, 0xff)
A64_GATHER = re.compile(r'a64 [dq]word gathering read')
OLD_BYTES = ((re.compile(r'untyped surface read with ([xyzw]+)'), lambda m, *_: 4 * len(m[1])),
             (re.compile(r'byte gathering read (\d+)b'), lambda m, *_: int(m[1]) // 8),
             (re.compile(r'oword (?:aligned )?block read x(\d+)'),
              lambda m, width: 16 * int(m[1]) // width))
# Of Arc and Max: load.MEMORY.dBITS[xN][t].aBITS...; t: one piece for the thread, not for each
# work-item. ss[...] is memory for spills and arrays, bti[255] the kernel's arguments.
NEW_LOAD = re.compile(r'load\.ugm\.d(\d+)(?:u32)?(?:x(\d+)(t?))?\.a\d+(\S*)')


def intel_registers(hexes):
    """The 32-bit numbers of a token."""
    words = [int(word, 16) for word in hexes.split()]
    return [sum(words[i + j] << 8 * j for j in range(4)) for i in range(0, len(words) - 3, 4)]


def intel_loads(text, width):
    loads = Counter()
    for line in text.splitlines():
        new, old = NEW_LOAD.search(line), OLD_LOAD.search(line)
        if new and not new[4].count('ss[') and not new[4].endswith('bti[255]'):
            loads[int(new[1]) // 8 * int(new[2] or 1) // (width if new[3] else 1)] += 1
        elif old and not new:
            surface = int(old[1], 16) & 0xff
            if surface == LOCAL or (surface in ADDRESSES and old[4].startswith('oword')):
                continue
            if A64_GATHER.match(old[4]):
                loads[8 * int(old[3]) // int(old[2])] += 1
            for pattern, size in OLD_BYTES:
                found = pattern.match(old[4])
                if found:
                    loads[size(found, width)] += 1
    loads.pop(0, None)
    return dict(loads)


def intel_kernel(section, text, spills):
    tokens = {int(token): intel_registers(hexes) for token, hexes in TOKEN.findall(section)}
    width = tokens[ENVIRONMENT][3]
    private = tokens[SCRATCH][1] // width if SCRATCH in tokens else 0
    if PRIVATE in tokens:
        private += tokens[PRIVATE][3]
    return Kernel(width, 128, spills, 0, private, tokens.get(LOCAL_SURFACE, (0, 0))[1],
                  intel_loads(text, width), text.count('signal barrier'))


def link_disassembler(folder):
    """ocloc opens libiga64.so, which Debian has as libiga64.so.1 alone."""
    for library in ('/usr/lib/x86_64-linux-gnu/libiga64.so', '/usr/lib/libiga64.so'):
        if os.path.exists(library + '.1') and not os.path.exists(library):
            os.symlink(library + '.1', os.path.join(folder, 'libiga64.so'))
    paths = [folder] + os.environ.get('LD_LIBRARY_PATH', '').split(':')
    return ':'.join(path for path in paths if path)


def compile_intel(target, source, options, folder):
    said = run(['ocloc', 'compile', '-file', source, '-device', target.name, '-options', options,
                '-output', 'out', '-out_dir', folder], folder)
    libraries = link_disassembler(folder)
    dump = os.path.join(folder, 'dump')
    binary, = glob.glob(os.path.join(folder, '*.bin'))
    run(['ocloc', 'disasm', '-file', binary, '-dump', dump, '-device', target.name], folder,
        LD_LIBRARY_PATH=libraries)
    spills = {name: int(n) for name, n in SPILLED.findall(said)}
    kernels = {}
    for section in read(os.path.join(dump, 'PTM.txt')).split('KernelBinaryHeader:')[1:]:
        name = re.search(r'KernelName (\w+)', section)[1]
        text = read(os.path.join(dump, name + '_KernelHeap.asm'))
        kernels[name] = intel_kernel(section, text, spills.get(name, 0))
    return kernels


# ---- AMD -----------------------------------------------------------------------------------------

CLANG = ['clang-15', '-x', 'cl', '-O3', '-Xclang', '-finclude-default-header', '-S']
AMD_BYTES = {'ubyte': 1, 'sbyte': 1, 'ushort': 2, 'sshort': 2, 'short': 2, 'dword': 4,
             'dwordx2': 8, 'dwordx3': 12, 'dwordx4': 16}
AMD_LOAD = re.compile(r'\b(?:global|flat)_load_(\w+)')  # buffer_load is of private memory


AMD_STEP = re.compile(r'\b(?:(?:global|flat)_(load|store)_(\w+)|s_waitcnt\b.*?vmcnt\((\d+)\))')


def amd_flight(body):
    """Loads come back in their order; s_waitcnt vmcnt(N) waits until N of them are left. Stores count
    as loads do, but on RDNA, where they are counted apart: there it is too little by a store's turn."""
    out, most = [], 0
    for what, kind, left in AMD_STEP.findall(body):
        if left:
            del out[:max(0, len(out) - int(left))]
        else:
            out.append(AMD_BYTES.get(kind.split('_')[0], 0) if what == 'load' else 0)
            most = max(most, sum(out))
    return most


def amd_number(text, name):
    return int(re.search(r'\.%s: +(\d+)' % name, text)[1])


def compile_amd(target, source, options, folder):
    out = os.path.join(folder, 'out.s')
    run(CLANG + ['-target', 'amdgcn-amd-amdhsa', '-mcpu=' + target.name,
                 '--rocm-device-lib-path=' + find_bitcode(), '-o', out, source] + options.split(),
        folder)
    text = read(out)
    code, said = text.split('.amdgpu_metadata', 1)
    kernels = {}
    listed = said.split('amdhsa.kernels:', 1)[1].split('amdhsa.target:', 1)[0]
    for part in re.split(r'^  - ', listed, flags=re.M)[1:]:
        name = re.search(r'^    \.name: +(\w+)', part, re.M)[1]
        body = re.search(r'^%s:.*?^\.Lfunc_end' % name, code, re.M | re.S)[0]
        behind = code[code.index('.section\t.AMDGPU.csdata', code.index(body)):]
        vectors = re.search(r'; (?:TotalNumVgprs|NumVgprs): (\d+)', behind)
        loads = Counter(AMD_BYTES[found.split('_')[0]] for found in AMD_LOAD.findall(body)
                        if found.split('_')[0] in AMD_BYTES)
        kernels[name] = Kernel(
            amd_number(part, 'wavefront_size'),
            (max(int(vectors[1]), 1), amd_number(part, 'sgpr_count')),
            amd_number(part, 'vgpr_spill_count'), amd_number(part, 'sgpr_spill_count'),
            amd_number(part, 'private_segment_fixed_size'),
            amd_number(part, 'group_segment_fixed_size'), dict(loads), body.count('s_barrier'),
            amd_flight(body))
    return kernels


# ---- NVIDIA --------------------------------------------------------------------------------------

PTX_LOAD = re.compile(r'\bld\.global(?:\.nc|\.volatile)?(?:\.v([24]))?\.[a-z](\d+)')


def compile_nvidia(target, source, options, folder):
    out = os.path.join(folder, 'out.ptx')
    words = ['-Xclang', '-mlink-builtin-bitcode', '-Xclang', LIBCLC]
    for word in ('-target-cpu', 'sm_80', '-target-feature', '+ptx70'):
        words += ['-Xclang', word]
    words += options.split()
    run(CLANG + ['-target', 'nvptx64--nvidiacl', '-o', out, source] + words, folder)
    said = run([find_ptxas(), '-arch=' + target.name, '-v', out, '-o',
                os.path.join(folder, 'out.cubin')], folder)
    text = read(out)
    kernels = {}
    for part in re.split(r"Compiling entry function '", said)[1:]:
        name = part.split("'")[0]
        body = re.search(r'\.entry %s\(.*?^}' % name, text, re.M | re.S)[0]
        local = re.search(r'(\d+) bytes smem', part)
        loads = Counter(int(bits) // 8 * int(n or 1) for n, bits in PTX_LOAD.findall(body))
        kernels[name] = Kernel(
            32, int(re.search(r'Used (\d+) registers', part)[1]),
            sum(int(n) for n in re.findall(r'(\d+) bytes spill (?:stores|loads)', part)), 0,
            int(re.search(r'(\d+) bytes stack frame', part)[1]),
            int(local[1]) if local else 0, dict(loads),
            len(re.findall(r'\bbar(?:rier)?\.sync', body)))
    return kernels


COMPILE = {INTEL: compile_intel, AMD: compile_amd, NVIDIA: compile_nvidia}


def compile_program(target, source, options, folder):
    """{kernel: Kernel}; Failed with what the compiler says. The folder is empty before."""
    return COMPILE[target.vendor](target, source, options, folder)


# ---- Occupancy -----------------------------------------------------------------------------------


def round_up(n, step):
    return -(-n // step) * step


def intel_local(n):
    """Threads get local memory in powers of two."""
    size = KIB
    while size < n:
        size *= 2
    return size


def of_registers(target, kernel):
    """Waves of a unit that the registers allow."""
    if target.vendor == NVIDIA:
        of_warp = round_up(kernel.registers * 32, 256)
        return gpu_resources.REGISTERS // of_warp // 4 * 4
    if not target.registers:
        return target.most
    vectors, scalars = kernel.registers
    waves = target.registers.all // round_up(vectors, target.registers.step)
    if target.registers.scalar:
        waves = min(waves, next(n for most, n in SCALARS if scalars <= most))
    return waves * target.registers.simds


def occupancy(target, kernel, size):
    """(waves resident on a unit, what bounds them) where work-groups have `size` work-items."""
    waves = -(-size // kernel.width)
    local = kernel.local
    if target.vendor == NVIDIA:  # a block takes 1 KiB for itself
        local += gpu_resources.SHARED_OF_BLOCK
    if local:
        local = intel_local(local) if target.vendor == INTEL else round_up(local, target.grain)
    barred = kernel.barriers and (target.vendor == INTEL or waves > 1)
    groups = {'waves': target.most // waves, 'registers': of_registers(target, kernel) // waves,
              'local memory': target.local // local if local else target.groups,
              'work-groups': target.barred if barred else target.groups}
    least = min(groups, key=groups.get)
    return groups[least] * waves, 'none' if groups[least] * waves == target.most else least
