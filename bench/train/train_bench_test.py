#!/usr/bin/env python3
"""What ablations.py makes of runs, and recall.py of texts, shards and logits."""
import argparse
import json
import pathlib
import struct
import tempfile
import unittest

import ablations
import recall


def write_run(folder, bits, violation=0.5, finished=True):
    """A log of three steps and the one behind them, two held-out sources of 100 and 300 bytes."""
    folder.mkdir(parents=True)
    phases = [{"name": "trained", "steps": 3}, {"name": "exported", "steps": 1}]
    (folder / "train.json").write_text(json.dumps({"phases": phases}))
    lines = [{"type": "step", "step": s, "phase": "trained" if s <= 3 else "exported", "loss": 1.0, "load_violation": violation,
              "load_violation_worst": 1.0, "largest_logit": 10.0 * s, "seconds": 0.5} for s in (1, 2, 3, 4)]
    lines += [{"type": "evaluation", "step": s, "source": source, "bits_per_byte": bits + more, "bytes": size}
              for s in (3, 4) for source, size, more in (("a", 100, 0.4), ("b", 300, 0.1 * (s - 3)))]
    if not finished:
        lines.pop(), lines.pop()
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


class Ablations(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.out = pathlib.Path(self.scratch.name)
        self.addCleanup(self.scratch.cleanup)
        self.options = argparse.Namespace(out=self.out, seeds=[0, 1], steps=10, data=self.out / "data", tokenizer=self.out, evaluate_tokens=64,
                                          sequence_tokens=16, tokens_per_step=32,
                                          base_rate=0.02)

    def test_sources_count_by_their_bytes(self):
        write_run(self.out / "base@0.01-0", 2.0)
        result = ablations.result_of(self.out / "base@0.01-0")
        self.assertAlmostEqual(result["trained"], 2.1)
        self.assertAlmostEqual(result["exported"], 2.175)
        self.assertEqual((result["violation"], result["logit"], result["seconds"]), (0.5, 30.0, 2.0))

    def test_a_run_that_is_not_done_has_no_result(self):
        write_run(self.out / "base@0.01-0", 2.0, finished=False)
        self.assertIsNone(ablations.result_of(self.out / "base@0.01-0"))
        self.assertIsNone(ablations.result_of(self.out / "none"))

    def test_the_best_rate_and_differences_of_the_same_seed(self):
        write_run(self.out / "base@0.005-0", 3.0)
        write_run(self.out / "base@0.01-0", 2.0)
        write_run(self.out / "base@0.01-1", 2.2)
        write_run(self.out / "residual-0", 2.1)
        write_run(self.out / "residual-1", 2.3)
        rows = {row["variant"]: row for row in ablations.table(self.options)}
        self.assertEqual(sorted(rows), ["base", "residual"])
        self.assertEqual(rows["base"]["rate"], 0.01)
        self.assertAlmostEqual(rows["base"]["trained"]["mean"], 2.2)
        self.assertAlmostEqual(rows["residual"]["trained_to_base"]["mean"], 0.1)
        self.assertAlmostEqual(rows["residual"]["trained_to_base"]["sd"], 0.0)

    def test_configs(self):
        self.options.data.mkdir()
        sources = [{"name": "a", "kind": "text", "split": "train"}, {"name": "talk", "kind": "chat", "split": "train"},
                   {"name": "a", "kind": "text", "split": "valid"}]
        manifest = {"bos": 1, "end_of_message": 2, "pad": 3, "vocab": 4, "sources": sources}
        (self.options.data / "manifest.json").write_text(json.dumps(manifest))
        for variant in ablations.VARIANTS:
            config = ablations.config_of(variant, None, 7, self.options)
            text = config["model"]["text_config"]
            layers = text["linear_attn_config"]
            self.assertEqual(sum(p["steps"] for p in config["phases"]), 11)
            self.assertEqual((config["phases"][-1]["learning_rate"], config["phases"][-1]["mxfp4_experts"]), (0, True))
            self.assertEqual(sorted(layers["kda_layers"] + layers["full_attn_layers"]), [1, 2, 3, 4, 5, 6])
            self.assertEqual("attn_res_block_size" in text, variant != "residual")
            self.assertEqual([s.get("learn_all", False) for s in config["phases"][0]["sources"]], [False, True])
            self.assertEqual(config["recipe"]["matrix_rate"] == 0.02, variant not in ("base", "muon", "adamw"))


class Recall(unittest.TestCase):
    def test_words_are_distinct(self):
        keys, values = recall.made_up_words()
        self.assertEqual((len(keys), len(values)), (recall.KEYS, recall.VALUES))
        self.assertEqual(len(set(keys) | set(values)), recall.KEYS + recall.VALUES)

    def test_every_answer_is_stated_once(self):
        writer = recall.Writer(3)
        for tokens, facts, asked in ((128, 6, 6), (980, 32, 16)):
            user, assistant = (m["content"] for m in writer.conversation(tokens, facts, asked)["messages"])
            text, question = user.split("\n? ")
            answers = assistant.removeprefix("; ").split(". ")
            self.assertEqual(len(answers), asked)
            self.assertEqual([a.split()[0] for a in answers], question.split())
            for answer in answers:
                self.assertEqual(text.count(f" {answer.removesuffix('.')}."), 1, answer)

    def test_documents_of_a_shard(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.k3t"
            header = struct.pack("<8sIIQQQII", b"k3tokens", 1, 2, 5, 2, 100, 1, 0) + bytes(16)
            path.write_bytes(header + struct.pack("<5H6x", 7, 8, 9, 10, 11) + struct.pack("<4Q", 3, 5, 1, 1) + bytes([0b10110]) + bytes(7))
            self.assertEqual(list(recall.documents(path)), [((7, 8, 9), [0, 1, 1]), ((10, 11), [0, 1])])

    def test_the_largest_of_a_row(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.npy"
            header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n"
            path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<6f", 1, 3, 2, 9, 0, 1))
            self.assertEqual(recall.argmax_rows(path, [0, 1]), [1, 0])


if __name__ == "__main__":
    unittest.main()
