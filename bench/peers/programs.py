"""How each program is called and how its speed is read from what it prints. One class a program.

Every class has: name; exact (True when its arithmetic is FP32 on the weights as stored); commands(threads), one command a
kind of measurement ("prefill", "decode" or "both"), a command being (argv, environment); parse(kind, stdout, stderr), the
speeds in tokens per second that this command told; logits(ids, path, threads), the command that writes logits, or None.
"""
import json
import random
import re


class Task:
    """What is measured: a prompt of `prompt` tokens, `decode` single tokens, on one model."""

    def __init__(self, model, gguf, prompt, decode, warm, cache_gb, vocab, seed=1):
        self.model, self.gguf, self.prompt, self.decode, self.warm = model, gguf, prompt, decode, warm
        self.cache_gb = cache_gb  # enough for every expert, so that no program streams
        draw = random.Random(seed)
        self.ids = [draw.randrange(2, vocab) for _ in range(max(prompt, warm))]  # 0 and 1 may end a text


class ParseError(Exception):
    pass


def one(pattern, text, what):
    found = re.search(pattern, text)
    if not found:
        raise ParseError(f"no {what} in the output:\n{text[-2000:]}")
    return float(found[1])


class K3:
    """Ours. `bench` keeps the model in memory; one repetition a call, so that rounds alternate."""

    def __init__(self, path, task, policy):
        self.path, self.task, self.policy = path, task, policy
        self.name, self.exact = f"k3 {policy}", policy == "exact"

    def commands(self, threads):
        return {"both": ([self.path, "bench", self.task.model, "--prefill", str(self.task.prompt), "--decode",
                          str(self.task.decode), "-t", str(threads), "-r", "1", "--policy", self.policy, "--json"], {})}

    def parse(self, kind, out, err):
        return {row["test"]: row["tokens_per_second"] for row in json.loads(out)["results"]}

    def logits(self, ids, path, threads):
        return [self.path, "logits", self.task.model, "--ids", ",".join(map(str, ids)), "--policy", self.policy, "--out", path,
                "-t", str(threads)], {}


class LlamaBench:
    """llama.cpp. Its own repetition count stays 1: rounds are ours. It warms up before each measurement by default."""

    def __init__(self, path, task):
        self.path, self.task = path, task
        self.name, self.exact = "llama.cpp", False  # MXFP4 products take activations in 8 bits

    def commands(self, threads):
        return {"both": ([self.path, "-m", self.task.gguf, "-p", str(self.task.prompt), "-n", str(self.task.decode),
                          "-t", str(threads), "-ngl", "0", "-r", "1", "-o", "json"], {})}

    def parse(self, kind, out, err):
        rows = json.loads(out)
        return {"prefill": next(r["avg_ts"] for r in rows if r["n_gen"] == 0),
                "decode": next(r["avg_ts"] for r in rows if r["n_prompt"] == 0)}

    logits = None  # llama-bench has no such option


class KimiC:
    """kimi-k3-in-c and its port to Rust, which keeps its command line. Decoding starts behind `warm` prompt tokens, so
    that the experts in use are in its cache, and is the sum of the steps after the first."""

    def __init__(self, name, path, task, thread_variable):
        self.name, self.exact, self.path, self.task, self.thread_variable = name, True, path, task, thread_variable

    def call(self, ids, tokens, threads, *more):
        return [self.path, self.task.model, "--ids", ",".join(map(str, ids)), "--gen", str(tokens), "--incremental",
                "--cache-gb", str(self.task.cache_gb), "--out", "/dev/null", *more], {self.thread_variable: str(threads)}

    def commands(self, threads):
        ids = self.task.ids
        return {"prefill": self.call(ids[:self.task.prompt], 1, threads),
                "decode": self.call(ids[:self.task.warm], self.task.decode + 1, threads)}

    def parse(self, kind, out, err):
        rows = re.findall(r"^\d+ +\d+ +([\d.]+) +[\d.]+ +[\d.]+ +([\d.]+) *$", out, re.M)  # seconds, and 1 / seconds
        steps = [1 / float(rate) if float(rate) >= 1 else float(time) for time, rate in rows]  # the one with more digits
        if kind == "prefill" and steps:
            return {"prefill": self.task.prompt / steps[0]}
        if len(steps) < 2:
            raise ParseError(f"no table of steps in the output:\n{out[-2000:]}")
        return {"decode": len(steps[1:]) / sum(steps[1:])}

    def logits(self, ids, path, threads):
        return self.call(ids, 1, threads, "--dump-logits", path)  # of the last position


class Colibri:
    """colibri's kimi_k3. It quantises the trunk while loading (by default 4 and 8 bits) and multiplies experts with 8-bit
    activations; the variant `float` turns both off. Experts are read through the page cache and stay in memory."""

    def __init__(self, path, task, exact):
        self.path, self.task, self.exact = path, task, exact
        self.name = "colibri float" if exact else "colibri int4/int8"

    def environment(self, threads):
        values = {"OMP_NUM_THREADS": str(threads), "K3_LOAD_THREADS": str(threads), "K3_DIRECT": "0", "AUTOPIN": "0",
                  "USAGE_SAVE": "0", "COLI_USAGE": "/dev/null", "K3_EXPERT_GB": str(self.task.cache_gb)}
        if self.exact:
            values.update(K3_BITS="32", K3_MLA_BITS="32", K3_HEAD_BITS="32", K3_IDOT="0")
        return values

    def call(self, ids, tokens, threads):
        return [self.path, self.task.model, "--ids", " ".join(map(str, ids)), "--ngen", str(tokens)], self.environment(threads)

    def commands(self, threads):
        ids = self.task.ids
        prefill = self.call(ids[:self.task.prompt], 1, threads)
        prefill[1]["K3_CHUNK"] = "512"  # the largest it takes; 32 by default
        return {"prefill": prefill, "decode": self.call(ids[:self.task.warm], self.task.decode + 1, threads)}

    def parse(self, kind, out, err):
        if kind == "prefill":
            return {"prefill": one(r"prefill done in [\d.]+s \(([\d.]+) tok/s\)", err, "prefill speed")}
        tokens = one(r"TUNE decode: (\d+) tokens", out, "count of tokens")
        return {"decode": (tokens - 1) / one(r"TUNE decode: \d+ tokens in ([\d.]+)s", out, "decode time")}

    def logits(self, ids, path, threads):
        argv, environment = self.call(ids, 1, threads)
        return argv, {**environment, "K3_LOGITS": path}
