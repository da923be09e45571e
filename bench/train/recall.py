#!/usr/bin/env python3
"""Long context in small: key-value recall on k3-nano, trained at 1,024 tokens, tested at 4,096.

    recall.py K3 FOLDER [--device cuda] [--only make,train,test] [--tests N] [--json]

A document states facts (two made-up words: a key and its value) between sentences of the demo's little stories; then the user asks
for some keys and the assistant answers each with its value. Documents of 1,024 tokens state 32 facts, those of 4,096 that are learned
from 128; tests at 4,096 tokens have 32 (the same task over a longer way) and 128 (four times the task). Two models are trained with the same steps and tokens: `short` sees 1,024 tokens and fewer, `extended` sees 4,096 in the
last phase. Both are exported and asked about held-out documents; an answer is right when key and value are what greedy decoding
would write. FOLDER keeps texts, tokenizer, data, runs and models; the same command goes on where it was stopped.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import demo_stories  # noqa: E402

KEYS, VALUES = 160, 32
ASKED = 16
VOCAB = 1408  # every made-up word is one token
# Source: tokens of a document (about), facts, questions, documents to train on, documents held out.
SOURCES = {
    "brief": (90, 4, 4, 40000, 40),
    "page": (245, 12, 12, 24000, 20),
    "1k": (980, 32, ASKED, 14000, 64),
    "4k": (3960, 128, ASKED, 2000, 64),
    "far": (3960, 32, ASKED, 0, 64),  # tested only: as many facts as at 1k, four times as far apart
}
TESTED = ["1k", "far", "4k"]
STEPS = [400, 300, 600, 400]  # facts, page, 1k, and the extension or as many more
MODELS = ["short", "extended"]
TOKENS_PER_STEP = 16384


def made_up_words():
    """Words of two syllables, the same ones every time."""
    rng = random.Random(1)
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words = [a + b for a in syllables for b in syllables]
    rng.shuffle(words)
    return words[:KEYS], words[KEYS:KEYS + VALUES]


def story_sentences():
    """Sentences of the demo's little stories, without speech."""
    rng = random.Random(2)
    text = " ".join(demo_stories.story(rng)[1] for _ in range(2000)).replace('"', "")
    return [s.strip() + "." for s in text.split(".") if 3 <= len(s.split()) <= 12]


class Writer:
    """Makes documents. Tokens are counted as words and stops, which is what the tokenizer makes of them but for rare words."""
    FRAME = 45  # of the chat format

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.keys, self.values = made_up_words()
        self.sentences = story_sentences()
        self.lengths = [len(s.split()) + s.count(",") + s.count("!") + s.count("?") + 1 for s in self.sentences]

    def conversation(self, tokens, facts, asked):
        rng = self.rng
        pairs = [(k, rng.choice(self.values)) for k in rng.sample(self.keys, facts)]
        left = tokens - 3 * facts - 4 * asked - self.FRAME
        gaps = [[] for _ in range(facts + 1)]
        while left > 0:
            i = rng.randrange(len(self.sentences))
            left -= self.lengths[i]
            gaps[rng.randrange(facts + 1)].append(self.sentences[i])
        parts = list(gaps[0])
        for (key, value), gap in zip(pairs, gaps[1:]):
            parts.append(f"{key} {value}.")
            parts += gap
        wanted = rng.sample(pairs, asked)
        question = "Facts: " + " ".join(parts) + "\n? " + " ".join(k for k, _ in wanted)
        answer = "; " + " ".join(f"{k} {v}." for k, v in wanted)
        return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}

    def facts(self, count, times):
        """A text that states each fact several times: what comes behind a key seen before can be known."""
        pairs = [(k, self.rng.choice(self.values)) for k in self.rng.sample(self.keys, count)]
        stated = pairs * times
        self.rng.shuffle(stated)
        return "Facts: " + " ".join(f"{k} {v}." for k, v in stated)


def write_source(job):
    path, name, seed, count = job
    writer = Writer(seed)
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(count):
            if name == "facts":
                out.write(writer.facts(round(2 ** writer.rng.uniform(1, 4)), 5) + "\n<|endoftext|>\n")  # few are learned first
            else:
                out.write(json.dumps(writer.conversation(*SOURCES[name][:3])) + "\n")


def make(k3, folder, jobs):
    texts, tokenizer, data = folder / "texts", folder / "tokenizer", folder / "data"
    if (data / "manifest.json").exists():
        return
    (texts / "held").mkdir(parents=True, exist_ok=True)
    work = [(texts / "facts.txt", "facts", 100, 30000), (texts / "held" / "facts.txt", "facts", 101, 20)]
    for i, (name, (_, _, _, train, held)) in enumerate(SOURCES.items()):
        work += [(texts / f"{name}.jsonl", name, 2 * i, train)] if train else []
        work += [(texts / "held" / f"{name}.jsonl", name, 2 * i + 1, held)]
    work.sort(key=lambda job: -job[3] * SOURCES.get(job[1], (150,))[0])
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        list(pool.map(write_source, work))
    learn = [f"{texts}/facts.txt", f"{texts}/page.jsonl"]
    run([k3, "train-tokenizer", "--vocab", str(VOCAB), "--force", "--out", tokenizer] + learn)
    learned = [path for path, _, _, _ in work if path.parent == texts]
    held = [item for path, _, _, _ in work if path.parent != texts for item in ("--valid", path)]
    run([k3, "prepare", "--tokenizer", tokenizer, "--force", "--out", data] + learned + held)


def run(command, **options):
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **options)
    if result.returncode != 0:
        sys.exit(f"recall.py: {' '.join(str(c) for c in command)}\n{result.stderr[-2000:]}")
    return result.stdout


def config_of(folder, extended, options):
    """k3-nano with the vocabulary of the made-up words; the last phase is what differs."""
    config = json.loads((ROOT / "configs" / "k3-nano.json").read_text())
    manifest = json.loads((folder / "data" / "manifest.json").read_text())
    for part in (config["model"], config["model"]["text_config"]):
        part.update(bos_token_id=manifest["bos"], eos_token_id=manifest["end_of_message"], pad_token_id=manifest["pad"])
    config["model"]["text_config"]["vocab_size"] = manifest["vocab"]

    def phase(name, tokens, steps, sources, **more):
        return {"name": name, "steps": steps, "sequence_tokens": tokens, "tokens_per_step": options.tokens_per_step,
                "sources": [{"name": s, "weight": w} for s, w in sources.items()], **more}
    facts, page, full, last = options.steps
    text = {} if options.no_text else {"facts": 1}
    config["phases"] = [
        phase("facts", 256, facts, {**text, "brief": 1}),
        phase("page", 256, page, {**text, "page": 3}),
        phase("1k", 1024, full, {"page": 1, "1k": 3}),
        phase("extension", 4096, last, {"4k": 3, "1k": 1}, new_schedule=True, learning_rate=0.5) if extended else
        phase("1k again", 1024, last, {"1k": 1}, new_schedule=True, learning_rate=0.5),
    ]
    for field in ("sample", "sample_every", "checkpoint_every"):
        config.pop(field)
    for rate in ("matrix_rate", "vector_rate", "embedding_rate"):
        config["recipe"][rate] *= options.rates
    config.update(tokenizer="tokenizer", data="data", seed=options.seed, evaluate_every=200, evaluate_sources=["facts", "brief", "page", "1k"],
                  evaluate_tokens=4096)
    return config


def train(k3, folder, options):
    def one(name):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(config_of(folder, name == "extended", options), indent=1))
        command = [k3, "train", path, "-o", folder / f"run-{name}", "--device", options.device, "-t", options.threads]
        if options.stop_after:
            command += ["--stop-after", options.stop_after]
        with open(folder / f"{name}.log", "w", encoding="utf-8") as log:
            subprocess.run([str(c) for c in command], stdout=log, stderr=log, check=False)
        run([k3, "export", "--force", folder / f"run-{name}", folder / f"model-{name}"])
    with concurrent.futures.ThreadPoolExecutor(len(options.models)) as pool:
        list(pool.map(one, options.models))


def documents(path):
    """(ids, learned) of each document of a shard; docs/training.md has the layout."""
    raw = path.read_bytes()
    _, _, width, tokens, count = struct.unpack_from("<8sIIQQ", raw, 0)
    flags, = struct.unpack_from("<I", raw, 40)

    def padded(n):
        return (n + 7) // 8 * 8
    at = 64
    ids = struct.unpack_from(f"<{tokens}{'H' if width == 2 else 'i'}", raw, at)
    at += padded(width * tokens)
    ends = struct.unpack_from(f"<{count}Q", raw, at)
    at += 16 * count
    if not flags & 1:
        sys.exit(f"recall.py: {path} has no mask")
    learned = [raw[at + i // 8] >> (i % 8) & 1 for i in range(tokens)]
    begin = 0
    for end in ends:
        yield ids[begin:end], learned[begin:end]
        begin = end


def argmax_rows(path, rows):
    """The largest logit's id at each row of a float32 .npy file."""
    with open(path, "rb") as file:
        file.seek(8)
        header = file.read(struct.unpack("<H", file.read(2))[0]).decode()
        vocab = int(header.split("(")[1].split(")")[0].split(",")[1])
        start = file.tell()
        out = []
        for row in rows:
            file.seek(start + 4 * vocab * row)
            values = struct.unpack(f"<{vocab}f", file.read(4 * vocab))
            out.append(max(range(vocab), key=values.__getitem__))
        return out


def ask(job):
    """(values right, answers right, asked) of one document: what greedy decoding writes behind the answers before."""
    k3, model, ids, learned = job
    places = [i for i in range(1, len(ids)) if learned[i]]
    with tempfile.TemporaryDirectory() as scratch:
        listed, out = os.path.join(scratch, "ids"), os.path.join(scratch, "logits.npy")
        pathlib.Path(listed).write_text(",".join(map(str, ids)))
        run([k3, "logits", model, "--ids", f"@{listed}", "--out", out, "-t", "1"])
        best = argmax_rows(out, [i - 1 for i in places])
    hits = [guess == ids[i] for guess, i in zip(best, places)]
    # "; key value. key value." and the close tags behind it: three tokens a question.
    answers = [hits[1 + 3 * q:4 + 3 * q] for q in range(ASKED)]
    return sum(a[1] for a in answers), sum(all(a) for a in answers), ASKED


def test(k3, folder, options):
    rows = []
    for name in options.models:
        for source in TESTED:
            shard = next((folder / "data").glob(f"{source}.valid-*.k3t"))
            chosen = list(documents(shard))[:options.tests]
            jobs = [(k3, folder / f"model-{name}", ids, learned) for ids, learned in chosen]
            with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
                counts = list(pool.map(ask, jobs))
            values, whole, asked = (sum(c[i] for c in counts) for i in range(3))
            rows.append({"model": name, "documents": len(chosen), "source": source, "tokens": round(sum(len(i) for i, _ in chosen) / len(chosen)),
                         "asked": asked, "value_right": values / asked, "right": whole / asked})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("k3", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="make,train,test")
    parser.add_argument("--tests", type=int, default=64, help="held-out documents of each length")
    parser.add_argument("--models", default=MODELS, type=lambda text: text.split(","))
    parser.add_argument("--steps", default=STEPS, type=lambda text: [int(n) for n in text.split(",")], help="of the four phases")
    parser.add_argument("--tokens-per-step", type=int, default=TOKENS_PER_STEP)
    parser.add_argument("--rates", type=float, default=2, help="factor of k3-nano's learning rates")
    parser.add_argument("--no-text", action="store_true", help="conversations alone, without the texts that repeat facts")
    parser.add_argument("--stop-after", type=float, help="seconds; the same command goes on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="of each run of k3 train")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    k3, folder, stages = options.k3.resolve(), options.folder.resolve(), options.only.split(",")
    if "make" in stages:
        make(k3, folder, options.jobs)
    if "train" in stages:
        train(k3, folder, options)
    if "test" not in stages:
        return
    for row in test(k3, folder, options):
        print(json.dumps(row) if options.json else
              f"{row['model']:9} {row['tokens']:6,} tokens, {SOURCES[row['source']][1]:3} facts  {row['asked']:5} asked  value {100 * row['value_right']:5.1f} %  right {100 * row['right']:5.1f} %")


if __name__ == "__main__":
    main()
