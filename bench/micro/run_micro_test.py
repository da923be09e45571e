#!/usr/bin/env python3
"""What run_micro.py makes of google-benchmark's and k3's answers."""
import unittest

import run_micro as micro

CEILINGS = {"ceilings": [
    {"threads": 1, "rates": [{"name": "read", "median": 20e9}, {"name": "fp32 avx2", "median": 80e9},
                             {"name": "fp32 avx512", "median": 100e9}, {"name": "bf16 dot", "median": 200e9}]},
    {"threads": 2, "rates": [{"name": "read", "median": 30e9}, {"name": "fp32 avx512", "median": 190e9}]}]}


class Lines(unittest.TestCase):
    def line(self, **fields):
        result = {"name": "x", "real_time": 10.0, "time_unit": "us", **fields}
        return micro.line_of(result, micro.ceilings_of(CEILINGS), "cpu", "abc")

    def test_the_larger_share_is_the_bound(self):
        line = self.line(name="run/avx512_bf16/T:1/threads:2/real_time", **{"GFLOP/s": 19.0, "GB/s": 15.0}, label="bf16")
        self.assertEqual(line["case"], "run/avx512_bf16/T:1/threads:2")
        self.assertEqual((line["threads"], line["isa"], line["dtype"]), (2, "avx512", "bf16"))
        self.assertEqual((line["share"], line["bound"], line["ceiling"]), (0.5, "read", 30))
        self.assertEqual(line["time_us"], 10)

    def test_a_level_has_its_own_ceiling(self):
        self.assertEqual(self.line(name="run/avx2_bf16/T:512", **{"GFLOP/s": 40.0})["share"], 0.5)
        self.assertEqual(self.line(name="moe/T:512", **{"GFLOP/s": 40.0})["share"], 0.2)  # the best of the machine
        self.assertEqual(self.line(name="moe/exact/T:512", **{"GFLOP/s": 40.0})["share"], 0.4)
        self.assertEqual(self.line(name="chunk/threads:1/isa:2", **{"GFLOP/s": 40.0})["share"], 0.4)

    def test_nothing_to_hold_against(self):
        line = self.line(name="sample", time_unit="ns")
        self.assertEqual((line["share"], line["bound"], line["gflops"]), (None, None, None))
        self.assertEqual(line["time_us"], 0.01)
        self.assertIsNone(self.line(name="run/amx/threads:1", **{"GFLOP/s": 5.0})["share"])  # no such unit here

    def test_medians(self):
        runs = [{"name": "a", "run_name": "a", "real_time": t, "GB/s": 1 / t} for t in (3.0, 1.0, 2.0)]
        runs.append({"name": "a_mean", "run_name": "a", "run_type": "aggregate", "real_time": 99.0})
        runs.append({"name": "b", "error_occurred": True, "real_time": 0.0})
        (folded,) = micro.medians({"benchmarks": runs})
        self.assertEqual((folded["real_time"], folded["GB/s"]), (2.0, 0.5))


if __name__ == "__main__":
    unittest.main()
