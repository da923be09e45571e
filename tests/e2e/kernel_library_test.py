#!/usr/bin/env python3
"""libk3kernels.so: every function of its header is there and nothing else, and what it computes on the host. kernel_library_test.py LIBRARY REPOSITORY"""
import ctypes
import os
import re
import subprocess
import sys
import unittest

LIBRARY, REPOSITORY = sys.argv.pop(1), sys.argv.pop(1)


def text_of(*path):
    with open(os.path.join(REPOSITORY, *path), encoding="utf-8") as file:
        return file.read()


class KernelLibrary(unittest.TestCase):
    def setUp(self):
        self.lib = ctypes.CDLL(LIBRARY)
        self.header = text_of("src", "k3", "ops", "cuda", "k3_kernels.h")

    def test_has_the_functions_of_its_headers_alone(self):
        headers = self.header + text_of("src", "k3", "ops", "kda", "cuda", "kda_prefill_params.h")
        declared = set(re.findall(r"^(?:int|int64_t) (k3_\w+)\(", headers, re.MULTILINE))
        self.assertGreater(len(declared), 12)
        symbols = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
        self.assertEqual({line.split()[-1] for line in symbols.splitlines()}, declared)

    def test_has_the_version_of_its_header_and_of_its_binding(self):
        version = int(re.search(r"K3_KERNELS_VERSION = (\d+)", self.header).group(1))
        self.assertEqual(self.lib.k3_kernels_version(), version)
        self.assertIn(f"k3_kernels_version() != {version}:", text_of("bench", "peers", "k3kernels.py"))

    def test_counts_bytes_of_packed_experts(self):
        bytes_of = self.lib.k3_experts_packed_bytes
        bytes_of.restype, bytes_of.argtypes = ctypes.c_int64, [ctypes.c_int32, ctypes.c_int64, ctypes.c_int64]
        self.assertEqual(bytes_of(0, 2048, 2304), 2048 * 2304 * 2)
        self.assertEqual(bytes_of(1, 6144, 3584), 6144 * 3584 * 17 // 32)  # 16 bytes and a scale for 32 values


if __name__ == "__main__":
    unittest.main()
