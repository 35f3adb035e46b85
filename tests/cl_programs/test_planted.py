#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_compilers.py must report what is planted in a kernel: a spill, local memory that leaves
room for fewer waves, an error, a kernel that the host does not make.

Usage: test_planted.py ROOT CL-PROGRAMS [unittest arguments]; exit status 77 without AMD's compiler.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT, PROGRAMS = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
FILE, KERNEL, TARGET = 'pages.cl', 'copy_pages', 'gfx1030'

# More values than a work-item has registers, read before any is used.
SPILL = '''
    float many[280], all = 0;
    __attribute__((opencl_unroll_hint(280)))
    for (int i = 0; i < 280; i++)
        many[i] = ((volatile __global float *)data)[i * 64 + get_local_id(0)];
    __attribute__((opencl_unroll_hint(280)))
    for (int i = 0; i < 280; i++)
        all += many[i] * many[279 - i];
    ((__global float *)data)[get_global_id(0)] = all;
'''
LOCAL = '''
    __local float much[8192];
    much[get_local_id(0)] = 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    ((__global float *)data)[get_global_id(0)] = much[get_local_id(0) ^ 1];
'''


class Planted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.kernels = os.path.join(cls.folder.name, 'cl_kernels')
        cls.expected = os.path.join(cls.folder.name, 'expected')
        shutil.copytree(os.path.join(ROOT, 'cl_kernels'), cls.kernels)
        with open(os.path.join(cls.kernels, FILE), encoding='utf-8') as file:
            cls.text = file.read()
        done = cls.run_it('--targets', TARGET, '--update', cls.expected)
        if done.returncode == 77:
            print(done.stdout)
            sys.exit(77)
        assert done.returncode == 0, done.stdout + done.stderr

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def run_it(cls, *arguments):
        return subprocess.run(
            [sys.executable, os.path.join(ROOT, 'tools', 'gpu_compilers.py'), '--small', '--files',
             FILE, *arguments, PROGRAMS, os.path.join(ROOT, 'tests', 'data', 'models')],
            env={**os.environ, 'TAMIS_KERNEL_DIR': cls.kernels}, capture_output=True, text=True,
            check=False)

    def check(self, text):
        with open(os.path.join(self.kernels, FILE), 'w', encoding='utf-8') as file:
            file.write(text)
        return self.run_it('--check', self.expected)

    def fails_with(self, text, part):
        done = self.check(text)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn('%s with -DDTYPE=0 for %s' % (FILE, TARGET), done.stdout)
        self.assertIn(part, done.stdout)

    def in_kernel(self, planted):
        """The text with it at the begin of the kernel's body."""
        body = self.text.index('{', self.text.index('void %s(' % KERNEL)) + 1
        return self.text[:body] + planted + self.text[body:]

    def test_sound(self):
        done = self.check(self.text)
        self.assertEqual((done.returncode, done.stdout), (0, ''))

    def test_spill(self):
        self.fails_with(self.in_kernel(SPILL), 'kernel %s spills ' % KERNEL)

    def test_local_memory(self):
        self.fails_with(self.in_kernel(LOCAL), 'of 64 waves, before 64; bounded by local memory')

    def test_error(self):
        self.fails_with(self.in_kernel('nothing = 1;'), "use of undeclared identifier 'nothing'")

    def test_kernel_of_nobody(self):
        done = self.check(self.text + '__kernel void forgotten(__global int *x) { *x = 1; }\n')
        self.assertEqual(done.returncode, 1)
        self.assertIn('%s: kernel forgotten is made by no plan' % FILE, done.stdout)


if __name__ == '__main__':
    unittest.main()
