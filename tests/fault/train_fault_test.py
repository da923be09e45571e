#!/usr/bin/env python3
"""Training on damaged data, from damaged checkpoints, onto full disks and by hostile configs: the error names the file or the field, nothing
that was there is lost, and the next run goes on. TensorBoard's file is read by a parser of its own.

    train_fault_test.py K3_BINARY
"""
import copy
import json
import os
import resource
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from train_lab import Lab, default_config  # noqa: E402

LAB = None
USAGE, NOT_FOUND, CORRUPT, EXHAUSTED = 2, 3, 4, 6


def expect(fact, text):
    if not fact:
        raise AssertionError(text)


def says(outcome, code, *parts):
    """The program failed with this code (or one of these), in words, and did not crash."""
    got, text = outcome
    codes = code if isinstance(code, tuple) else (code,)
    expect(got in codes, "exit code %d, not %s\n%s" % (got, codes, text))
    expect("internal error" not in text and "CHECK" not in text and "what():" not in text, text)
    for part in parts:
        expect(part in text, "does not say %r:\n%s" % (part, text))


def short_config(**changes):
    config = default_config(LAB.vocab)
    for phase, steps in zip(config["phases"], (4, 2, 2)):
        phase["steps"] = steps
    config.update(checkpoint_every=2, evaluate_every=0, sample_every=4)
    config.update(changes)
    return config


# ---- the disk ----
def full_device(name):
    """The file is a device without room. What a run wrote before stays, and the next run ends as one on a good disk."""
    folder = "full-" + name
    os.makedirs(LAB.path(folder))
    os.symlink("/dev/full", LAB.path(folder, name))
    says(LAB.train(folder, config="short.json"), EXHAUSTED, name, "No space left on device")
    os.remove(LAB.path(folder, name))
    goes_on(folder)


def full_for_checkpoints():
    """Files of no more than 300,000 bytes: too small for the weights, large enough for the log."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))  # noqa: E731
    says(LAB.train("full-first", config="short.json", preexec_fn=limit), EXHAUSTED, "checkpoints/.unfinished", "step 2 was not written", "begins anew")
    expect(LAB.checkpoints("full-first") == [], "a part of a checkpoint counts")
    expect(not os.path.exists(LAB.path("full-first", "checkpoints", ".unfinished")), "the room is not given back")
    goes_on("full-first")
    stopped_at_four("full-later")
    says(LAB.train("full-later", config="short.json", preexec_fn=limit), EXHAUSTED, "step 6 was not written", "goes on from that of step 4")
    expect(LAB.checkpoints("full-later") == [4], "the older checkpoint is gone")
    goes_on("full-later")


def goes_on(folder):
    code, text = LAB.train(folder, config="short.json")
    expect(code == 0, text)
    expect(LAB.losses(folder) == LAB.losses("good"), folder + ": other losses")


def stopped_at_four(folder):
    """As a run that was killed after its checkpoint of step 4."""
    shutil.rmtree(LAB.path(folder), ignore_errors=True)
    shutil.copytree(LAB.path("at-four"), LAB.path(folder))


def closed_streams():
    """Without standard streams their numbers go to files, and what is said must not end up in those."""
    close = lambda: [os.close(number) for number in (0, 1, 2)]  # noqa: E731
    LAB.train("closed", config="short.json", preexec_fn=close)
    expect(LAB.losses("closed") == LAB.losses("good"), "other losses")
    tensorboard("closed")


# ---- checkpoints ----
def damaged_checkpoints():
    files = ["model-%05d-of-000003.safetensors" % i for i in (1, 2, 3)] + ["model.safetensors.index.json", "state.json"]
    for name in files:
        for share in (0.0, 0.5):
            stopped_at_four("damaged")
            victim = LAB.path("damaged", "checkpoints", "step-4", name)
            os.truncate(victim, int(share * os.path.getsize(victim)))
            before = sorted(os.listdir(LAB.path("damaged", "checkpoints", "step-4")))
            says(LAB.train("damaged", config="short.json"), CORRUPT, name, "remove damaged/checkpoints/step-4")
            expect(sorted(os.listdir(LAB.path("damaged", "checkpoints", "step-4"))) == before, "the damaged one was touched")
    shutil.rmtree(LAB.path("damaged", "checkpoints", "step-4"))
    goes_on("damaged")  # from the start: this run has no older one


def two_at_once():
    first = LAB.start("shared", config="run.json")
    line = first.stderr.readline()
    expect("parameters" in line, line)
    says(LAB.train("shared"), 1, "another process trains in this folder")
    first.kill()
    first.communicate()


# ---- data ----
def damaged_data():
    def harmed(harm, code, *parts):
        shutil.rmtree(LAB.path("harmed"), ignore_errors=True)
        shutil.copytree(LAB.path("data"), LAB.path("harmed"))
        harm(LAB.path("harmed"))
        LAB.write_config("harmed.json", short_config(data="harmed"))
        says(LAB.train("never", config="harmed.json"), code, *parts)
        expect(not LAB.checkpoints("never"), "a run on damaged data")

    def shard(edit):
        def harm(folder):
            name = [n for n in sorted(os.listdir(folder)) if n.startswith("stories") and "valid" not in n][0]
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            with open(os.path.join(folder, name), "wb") as file:
                file.write(edit(content))
        return harm

    def manifest(edit):
        def harm(folder):
            with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
                content = json.load(file)
            edit(content)
            with open(os.path.join(folder, "manifest.json"), "w", encoding="utf-8") as file:
                json.dump(content, file)
        return harm

    for share in (0.0, 0.3, 0.99):
        harmed(shard(lambda b, s=share: b[:int(s * len(b))]), CORRUPT, "harmed/stories")
    harmed(shard(lambda b: b[:-3] + b"\xff" + b[-2:]), CORRUPT, "harmed/stories")
    harmed(lambda f: os.remove(os.path.join(f, "manifest.json")), NOT_FOUND, "harmed: no manifest.json")
    harmed(manifest(lambda m: m.update(vocab=m["vocab"] - 100)), (CORRUPT, USAGE), "harmed")
    harmed(manifest(lambda m: m.update(vocab=1 << 30)), (CORRUPT, USAGE), "harmed")
    for key in ("tokens", "documents"):
        harmed(manifest(lambda m, k=key: m["sources"][0].update({k: 10 ** 12})), CORRUPT, "harmed")
        harmed(manifest(lambda m, k=key: m["sources"][0]["shards"][0].update({k: 10 ** 12})), CORRUPT, "harmed")
        harmed(manifest(lambda m, k=key: m["sources"][0].update({k: -1})), CORRUPT, "harmed")
    harmed(manifest(lambda m: m["sources"][0]["shards"][0].update(file="../stories.txt")), CORRUPT, "harmed")
    harmed(manifest(lambda m: m.update(sources=[])), (CORRUPT, USAGE, NOT_FOUND), "harmed")


# ---- configs ----
def hostile_configs():
    huge, bad = 10 ** 15, ("many", None, [], {}, True, -1, 0.5, 1e300)

    def refused(edit, *parts, code=(USAGE, NOT_FOUND, EXHAUSTED, CORRUPT), raw=None):
        config = short_config()
        edit(config)
        LAB.write_config("hostile.json", config)
        if raw is not None:
            with open(LAB.path("hostile.json"), "w", encoding="utf-8") as file:
                file.write(raw(json.dumps(config)))
        says(LAB.train("never", "--quiet", config="hostile.json"), code, *parts)
        expect(not LAB.checkpoints("never"), "a run by a hostile config")

    phase = lambda key, value: lambda c: c["phases"][0].update({key: value})  # noqa: E731
    for key in ("steps", "sequence_tokens", "tokens_per_step", "micro_batches"):
        for value in bad:
            if value is not None:
                refused(phase(key, value), key)
        refused(phase(key, 1 << 62), key)
    for key in ("sequence_tokens", "tokens_per_step"):
        refused(phase(key, 0), key)
    refused(lambda c: c["phases"][0].update(sequence_tokens=1 << 20, tokens_per_step=1 << 20, micro_batches=1, sources=[dict(name="nowhere")]), "nowhere")
    refused(lambda c: c["phases"][0].update(sequence_tokens=1 << 24, tokens_per_step=1 << 34, micro_batches=1), "memory")
    refused(lambda c: [p.update(steps=0) for p in c["phases"]], "no phase has steps")
    refused(lambda c: c.update(phases=[]), "phases")
    refused(lambda c: c["phases"][0].update(sources=[]), "sources")
    refused(lambda c: c["phases"][0]["sources"][0].update(weight=-1), "weight")
    refused(lambda c: c["phases"][0]["sources"][0].update(weight=0), "weight")
    refused(lambda c: c["phases"][0]["sources"][1].update(share=1.5), "share")
    for key in ("matrix_rate", "vector_rate", "embedding_rate", "minimum_rate", "warmup", "weight_decay", "embedding_decay", "clip", "qk_clip", "balancing_rate"):
        for value in (-1, "fast", 1e300):
            refused(lambda c, k=key, v=value: c.update(recipe={k: v}), "recipe." + key)
        refused(lambda c, k=key: c.update(recipe={k: 1}), raw=lambda t, k=key: t.replace('"%s": 1' % k, '"%s": NaN' % k), code=USAGE)
        refused(lambda c, k=key: c.update(recipe={k: 1}), raw=lambda t, k=key: t.replace('"%s": 1' % k, '"%s": 1e999' % k), code=USAGE)
    for key in ("matrices", "balancing"):
        refused(lambda c, k=key: c.update(recipe={k: "best"}), "recipe." + key)
    for key in ("seed", "evaluate_every", "evaluate_tokens", "sample_every", "checkpoint_every"):
        for value in (-1, 1.5, "x", 1e300):
            refused(lambda c, k=key, v=value: c.update({k: v}), key)
    refused(lambda c: c.update(evaluate_sources=["nowhere"]), "nowhere")
    refused(lambda c: c.update(tokenizer="nowhere"), "nowhere", code=NOT_FOUND)
    refused(lambda c: c.update(data="nowhere"), "nowhere", code=NOT_FOUND)
    refused(lambda c: c.update(model="nowhere.json"), "nowhere.json", code=NOT_FOUND)
    refused(lambda c: c.update(tokenizer="other-tokenizer"), "another tokenizer")
    refused(lambda c: c.update(sample=dict(text="x", tokens=0)), "sample.tokens")
    refused(lambda c: c["model"]["text_config"].update(vocab_size=LAB.vocab - 1), "vocab")
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "num_experts", "kv_lora_rank",
                "moe_intermediate_size", "attn_res_block_size"):
        for value in (-1, 0, huge, 1 << 62, 1.5):
            refused(lambda c, k=key, v=value: c["model"]["text_config"].update({k: v}))
    for value in ("", "[", "[]", "{}", "null", "{\"model\": {}}", "\x00", "{" * 100000):
        refused(lambda c: None, "hostile.json", raw=lambda t, v=value: v)
    # Longer than all the data: it is repeated; that is a run like another.
    LAB.write_config("long.json", short_config(phases=[dict(steps=1, sequence_tokens=8192, tokens_per_step=8192, sources=[dict(name="stories")])]))
    code, text = LAB.train("long", config="long.json")
    expect(code == 0 or "phases[0]" in text, text)
    says(LAB.train("stories.txt", config="short.json"), (USAGE, 1), "stories.txt")
    says(LAB.train("/proc/nothing", config="short.json"), (USAGE, NOT_FOUND, 1), "/proc/nothing")
    says(LAB.train("never", "--set", "nonsense", config="short.json"), USAGE, "nonsense")
    says(LAB.train("never", "--stop-after", "-1", config="short.json"), USAGE, "stop-after")


# ---- TensorBoard ----
def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def unmasked(value):
    value = (value - 0xA282EAD8) & 0xFFFFFFFF
    return (value >> 17 | value << 15) & 0xFFFFFFFF


def fields(message):
    """(field, value) of a protocol buffer; bytes, int, or the raw bytes of a fixed number."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(kind) or varint()
        expect(at + size <= len(message) and kind in (1, 2, 5), "a protocol buffer that ends early")
        yield key >> 3, message[at:at + size]
        at += size


def tensorboard(folder="good"):
    """One record a step with the losses of the log, every checksum right."""
    with open(LAB.path(folder, "events.out.tfevents.k3"), "rb") as file:
        content = file.read()
    at, curve, texts, first = 0, [], 0, True
    while at < len(content):
        size, head = struct.unpack_from("<QI", content, at)
        expect(unmasked(head) == crc32c(content[at:at + 8]), "checksum of a length")
        data = content[at + 12:at + 12 + size]
        expect(unmasked(struct.unpack_from("<I", content, at + 12 + size)[0]) == crc32c(data), "checksum of a record")
        at += 16 + size
        event = dict(fields(data))
        if first:
            expect(event[3] == b"brain.Event:2", event)
        first = False
        for _, value in fields(event.get(5, b"")):
            value = dict(fields(value))
            if value[1] == b"train/loss":
                curve.append((event[2], struct.unpack("<f", value[2])[0]))
            texts += 8 in value
    expect(at == len(content), "the file ends in the middle of a record")
    wanted = [(step, struct.unpack("<f", struct.pack("<f", loss))[0]) for step, loss, _ in LAB.losses(folder)]
    expect(curve == wanted and curve, "other losses than in the log")
    expect(texts == 2, "%d samples" % texts)


def exports_over_a_model():
    """A model that is there is not replaced unasked."""
    LAB.exported("good")
    done = LAB.k3("export", "good", "model")
    says((done.returncode, done.stderr), USAGE, "model already holds a model", "--force")
    LAB.k3("export", "--force", "good", "model", check=True)


def main():
    global LAB
    with tempfile.TemporaryDirectory() as root:
        LAB = Lab(sys.argv[1], root)
        LAB.k3("train-tokenizer", "stories.txt", "--vocab", "520", "-o", "other-tokenizer", check=True)
        LAB.write_config("short.json", short_config())
        code, text = LAB.train("good", config="short.json")
        expect(code == 0, text)
        for _ in range(4):  # a limit of time that is over after each step
            code, text = LAB.train("at-four", "--stop-after", "0.000001", config="short.json")
            expect(code == 0 and "goes on from there" in text, text)
        expect(LAB.checkpoints("at-four") == [4], "steps one by one: %s" % LAB.checkpoints("at-four"))
        for test in (tensorboard, exports_over_a_model, closed_streams, two_at_once, full_for_checkpoints, damaged_checkpoints, damaged_data, hostile_configs):
            test()
            print(test.__name__, "passed", flush=True)
        for name in ("log.jsonl", "events.out.tfevents.k3", "report.html"):
            full_device(name)
        print("full devices passed")


if __name__ == "__main__":
    main()
