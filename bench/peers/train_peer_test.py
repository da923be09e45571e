#!/usr/bin/env python3
"""Tests of train_peer.py that need no PyTorch, no GPU and no baseline: schedule, texts, figures and table."""
import contextlib
import io
import json
import os
import tempfile
import unittest

import train_peer


class TrainPeer(unittest.TestCase):
    def test_rate_warms_up_and_ends_at_the_minimum(self):
        self.assertAlmostEqual(0.01, train_peer.rate(0, 300, 100))
        self.assertAlmostEqual(1.0, train_peer.rate(99, 300, 100))
        self.assertAlmostEqual(1.0, train_peer.rate(100, 300, 100))
        self.assertAlmostEqual(0.51, train_peer.rate(200, 300, 100))
        self.assertAlmostEqual(train_peer.MINIMUM_RATE, train_peer.rate(300, 300, 100))

    def test_documents_become_one_text(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/a.txt", "w", encoding="utf-8") as file:
                file.write("one\n<|endoftext|>\n two \n<|endoftext|>\n\n<|endoftext|>\n")
            self.assertEqual("one\n\ntwo", train_peer.plain_text(f"{folder}/a.txt"))

    def test_table_of_what_was_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            o = train_peer.parse(["--work", folder, "--stages", "table", "--step-tokens", "1000", "--json", f"{folder}/out.json"])
            with self.assertRaises(SystemExit):
                train_peer.table(o)
            losses = [5.0, 4.0, 3.0, 2.0]
            train_peer.write_json(f"{folder}/k3-2.json", {"losses": losses, "seconds": [9, 1, 2, 1], "memory_gb": 3.25, "flops_per_token": 1e9})
            # Cut short: the table ends where it ended.
            train_peer.write_json(f"{folder}/baseline.json", {"losses": [5.0, 4.5, 3.5], "seconds": [8, 4, 4], "windows_with_borders": 0.25})
            with contextlib.redirect_stdout(io.StringIO()) as text:
                train_peer.table(o)
            self.assertIn("| loss, mean of steps 1 to 3 | 4.0000 | 4.3333 | -0.3333 |", text.getvalue())
            self.assertIn("| tokens/s, median step | 667 | 250 | 2.67 x |", text.getvalue())
            self.assertIn("| GPU memory in use at most, GB | 3.2 |  |  |", text.getvalue())
            self.assertIn("25.0 % of the windows", text.getvalue())
            with open(f"{folder}/out.json", encoding="utf-8") as file:
                self.assertEqual(3, json.load(file)["steps"])

    def test_inputs_must_come_from_somewhere(self):
        with contextlib.redirect_stderr(io.StringIO()):
            for wrong in ([], ["--data", "d"], ["--sources", "a"]):
                with self.assertRaises(SystemExit):
                    train_peer.parse(["--work", os.curdir, *wrong])


if __name__ == "__main__":
    unittest.main()
