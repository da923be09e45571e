#!/usr/bin/env python3
"""Tests of run_peers.py that need no peer: reading of outputs, medians and ratios, and one whole run with stand-in programs."""
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

import run_peers
from programs import Colibri, K3, KimiC, LlamaBench, ParseError, Task

HERE = os.path.dirname(os.path.abspath(__file__))
TASK = Task("model", "model.gguf", 512, 2, 32, 1, 1000)
STEPS = """STEP   TOKEN      SECONDS      CACHE HIT  READ GB    TOK/S
0      10969      15.87        100.0      0.17       0.063
1      31772      0.25         100.0      0.00       4.000
2      652        0.00         100.0      0.00       250.000
3 tokens in 16.9 s, 5.62 s/token average
"""
STAND_IN = """#!/bin/sh
echo '{"results":[{"test":"prefill","tokens":8,"tokens_per_second":100.0},
  {"test":"decode","tokens":2,"tokens_per_second":20.0}]}'
"""


class Parsing(unittest.TestCase):
    def test_k3(self):
        program = K3("x", TASK, "bf16")
        out = '{"results":[{"test":"prefill","tokens_per_second":3.5},{"test":"decode","tokens_per_second":2}]}'
        self.assertEqual(program.parse("both", out, ""), {"prefill": 3.5, "decode": 2})

    def test_llama(self):
        out = json.dumps([{"n_prompt": 512, "n_gen": 0, "avg_ts": 100.5}, {"n_prompt": 0, "n_gen": 64, "avg_ts": 20.25}])
        self.assertEqual(LlamaBench("x", TASK).parse("both", out, ""), {"prefill": 100.5, "decode": 20.25})

    def test_kimi_c(self):
        program = KimiC("c", "x", TASK, "OMP_NUM_THREADS")
        self.assertAlmostEqual(program.parse("prefill", STEPS, "")["prefill"], 512 / 15.87)
        self.assertAlmostEqual(program.parse("decode", STEPS, "")["decode"], 2 / 0.254)  # 250 ms and 4 ms: not the first step
        for kind in ("prefill", "decode"):
            self.assertRaises(ParseError, program.parse, kind, "REFUSING TO START", "")

    def test_kimi_c_commands(self):
        commands = KimiC("c", "x", TASK, "OMP_NUM_THREADS").commands(2)
        argv, environment = commands["prefill"]
        self.assertEqual(argv[argv.index("--ids") + 1].count(","), 511)
        self.assertEqual(argv[argv.index("--gen") + 1], "1")
        self.assertEqual(environment, {"OMP_NUM_THREADS": "2"})
        argv, _ = commands["decode"]
        self.assertEqual(argv[argv.index("--gen") + 1], "3")  # one comes out of the prompt's own step

    def test_colibri(self):
        program = Colibri("x", TASK, True)
        err = "\r[K3] prefill 512/512 (20.5s)\n[K3] prefill done in 20.5s (24.98 tok/s)\n"
        self.assertEqual(program.parse("prefill", "", err), {"prefill": 24.98})
        self.assertAlmostEqual(program.parse("decode", "1 2 3 TUNE decode: 3 tokens in 0.500s\n", "")["decode"], 4.0)
        self.assertRaises(ParseError, program.parse, "decode", "OOM", "")

    def test_colibri_variants_differ(self):
        exact, default = (Colibri("x", TASK, e).commands(1)["decode"][1] for e in (True, False))
        self.assertEqual((exact["K3_BITS"], exact["K3_IDOT"]), ("32", "0"))
        self.assertNotIn("K3_BITS", default)


class Summary(unittest.TestCase):
    def test_ratios_are_medians_of_rounds_not_ratios_of_medians(self):
        ours, theirs = [10, 20, 90], [5, 20, 30]  # ratios 2, 1, 3; medians 20 and 20
        rows = [{"round": i, "program": name, "threads": 1, "prefill": v[i], "decode": 1, "others": 0}
                for i in range(3) for name, v in (("a", ours), ("b", theirs))]
        line = next(l for l in run_peers.summarise(rows, "a") if l["program"] == "b")
        self.assertEqual((line["prefill"], line["prefill_ratio"], line["prefill_spread"]), (20, 2, 25 / 20))

    def test_a_round_that_lacks_one_side_gives_no_ratio(self):
        rows = [{"round": 0, "program": "b", "threads": 1, "prefill": 1, "decode": 1, "others": 0}]
        self.assertIsNone(run_peers.summarise(rows, "a")[0]["prefill_ratio"])


class WholeRun(unittest.TestCase):
    def run_with(self, script, *more):
        with tempfile.TemporaryDirectory() as folder:
            program, out = os.path.join(folder, "k3"), os.path.join(folder, "out.json")
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump({"vocab_size": 100}, file)
            with open(program, "w", encoding="utf-8") as file:
                file.write(script)
            os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
            result = subprocess.run([sys.executable, os.path.join(HERE, "run_peers.py"), folder, "--k3", program, "--policies",
                                     "bf16", "-p", "8", "-n", "2", "-t", "1,2", "--rounds", "3", "--json", out, *more],
                                    capture_output=True, text=True, check=False)
            report = None
            if os.path.exists(out):
                with open(out, encoding="utf-8") as file:
                    report = json.load(file)
            return result, report

    def test_stand_in(self):
        result, report = self.run_with(STAND_IN)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(report["measurements"]), 6)
        self.assertIn("| k3 bf16 | 2 | 100.0 | 0% | 20.00 | 0% | 1.00 | 1.00 |", result.stdout)

    def test_a_program_that_fails_is_named_and_fails_the_run(self):
        result, report = self.run_with("#!/bin/sh\necho broken >&2\nexit 3\n")
        self.assertEqual(result.returncode, 1)
        self.assertIn("exit code 3", result.stderr)
        self.assertIsNone(report)

    def test_gguf_is_asked_for(self):
        result, _ = self.run_with(STAND_IN, "--llama-bench", "x")
        self.assertEqual(result.returncode, 2)


if __name__ == "__main__":
    unittest.main()
