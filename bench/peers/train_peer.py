#!/usr/bin/env python3
"""`k3 train` beside a PyTorch trainer of the same architecture: the same batches, first weights, rates and schedule; loss, tokens/s, MFU and GPU
memory of both.

    train_peer.py --k3 build/dev/k3 --text books.txt textbooks.txt --baseline FOLDER --torch-python venv/bin/python3 --work /tmp/peer --json peer.json

FOLDER/train.py is the baseline (none of its code is here): a script that defines model, optimizers and the functions loss_of, muon_step, balance
before its loop; its model is FOLDER/../oracle/k3_torch.py. Its loop is replaced by one that takes the batches of k3.

Documents are joined into one text a file, so that no border lies within a window: ours would begin anew at a border, the baseline would not.
With --data (a folder of `k3 prepare`) instead of --text they are not, and the share of windows with a border is told.
The first weights are drawn by k3 and read by the baseline as BF16 (k3 begins from the same in FP32). The optimizers are each side's own: both
take Muon for matrices, head by head, and AdamW for the rest. --recipe changes k3's, e.g. '{"embedding_decay": 0}' as the baseline has it.

`--stages` does a part (inputs, k3, baseline, table), e.g. the two trainers on two GPUs (CUDA_VISIBLE_DEVICES). `--device cpu` tries the script
out with a tiny model of your choice; the baseline's dry run has steps of 4 x 64 tokens.
"""
import argparse
import json
import math
import os
import statistics
import struct
import subprocess
import sys
import threading
import time

PEAK_FLOPS = 989e12  # H200, BF16
RATES = {"matrix_rate": 0.006, "vector_rate": 0.002, "embedding_rate": 0.003}
MINIMUM_RATE = 0.02
BALANCING_RATE = 0.2  # as the baseline's: the part of the way to a step's quantile that the router's bias goes
LOOP_BEGINS = "\nmodel.train()\nt0, step"  # in the baseline's script: what stands before defines, what follows trains


def rate(step, steps, warmup):
    """k3's schedule; that it is the same is checked against its log."""
    if step < warmup:
        return (step + 1) / warmup
    return MINIMUM_RATE + 0.5 * (1 - MINIMUM_RATE) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


# Inputs.

def plain_text(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        documents = [d.strip() for d in file.read().split("<|endoftext|>")]
    return "\n\n".join(d for d in documents if d)


def run_config(o, data, names, micro_batches):
    phase = {"name": "peer", "steps": o.steps, "sequence_tokens": o.sequence, "tokens_per_step": o.step_tokens, "micro_batches": micro_batches,
             "sources": [{"name": name} for name in names]}
    recipe = RATES | {"warmup": o.warmup / o.steps, "minimum_rate": MINIMUM_RATE, "balancing_rate": BALANCING_RATE} | o.recipe
    return {"model": "model.json", "tokenizer": os.path.abspath(o.tokenizer), "data": os.path.abspath(data), "seed": o.seed, "phases": [phase],
            "recipe": recipe, "evaluate_tokens": o.sequence, "sample": {"tokens": 1}}


def join_texts(o):
    """One document a file; the folder they are prepared in, and the names of the sources."""
    os.makedirs(f"{o.work}/text", exist_ok=True)
    texts = []
    for path in o.text:
        texts.append(f"{o.work}/text/{os.path.basename(path).split('.')[0]}.txt")
        with open(texts[-1], "w", encoding="utf-8") as file:
            file.write(plain_text(path))
    subprocess.run([o.k3, "prepare", "--force", "--tokenizer", o.tokenizer, "-o", f"{o.work}/data", *texts], check=True)
    return f"{o.work}/data", [os.path.basename(t)[:-4] for t in texts]


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)


def run_file(o, micro_batches):
    return f"{o.work}/run-{micro_batches}.json"


def make_inputs(o):
    os.makedirs(o.work, exist_ok=True)
    data, sources = (o.data, o.sources) if o.data else join_texts(o)
    with open(o.model, encoding="utf-8") as file:
        model = json.load(file)
    for part in (model, model.get("text_config", {})):
        part.pop("quantization_config", None)  # experts are stored as they are drawn
    write_json(f"{o.work}/model.json", model)
    for micro_batches in {o.micro_batches, *o.k3_micro_batches}:
        write_json(run_file(o, micro_batches), run_config(o, data, sources, micro_batches))
    for command in (["train", run_file(o, o.micro_batches), "--batches", "-o", f"{o.work}/batches.npy"],
                    ["init", "--force", f"{o.work}/model.json", f"{o.work}/first", "--seed", str(o.seed)]):
        subprocess.run([o.k3, *command], check=True)


# Ours.

class MemoryWatch:
    """Largest memory in use on the GPU, asked for twice a second."""

    def __init__(self, device):
        self.peak_gb, self.stop = None, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
        if device != "cpu":
            self.thread.start()

    def watch(self):
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", self.index]
        while not self.stop.wait(0.5):
            try:
                used = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
                self.peak_gb = max(self.peak_gb or 0, float(used.split()[0]) * 2**20 / 1e9)
            except (OSError, subprocess.SubprocessError, ValueError, IndexError):
                return

    def finish(self):
        self.stop.set()
        if self.thread.ident is not None:
            self.thread.join()
        return self.peak_gb


def k3_name(micro_batches):
    return f"k3, {micro_batches} micro-batch" + ("es" if micro_batches > 1 else "")


def train_k3(o):
    for micro_batches in o.k3_micro_batches:
        out = f"{o.work}/run-{micro_batches}"
        subprocess.run(["rm", "-rf", out], check=True)
        watch = MemoryWatch(o.device)
        try:
            subprocess.run([o.k3, "train", run_file(o, micro_batches), "-o", out, "--device", o.device, "-q"], check=True)
        finally:
            memory = watch.finish()
        with open(f"{out}/log.jsonl", encoding="utf-8") as file:
            steps = [r for r in map(json.loads, file) if r["type"] == "step"]
        for r in steps:
            wanted = rate(r["step"] - 1, o.steps, o.warmup)
            if abs(r["learning_rate"] - wanted) > 1e-12:
                raise SystemExit(f"train_peer: step {r['step']}: k3's rate is {r['learning_rate']}, the baseline's {wanted}")
        write_json(f"{o.work}/k3-{micro_batches}.json",
                   {"losses": [r["loss"] for r in steps], "seconds": [r["seconds"] for r in steps], "memory_gb": memory,
                    "flops_per_token": steps[0]["flops"] / steps[0]["tokens"]})
        subprocess.run(["rm", "-rf", out], check=True)


# The baseline: runs in its own Python.

def read_weights(folder):
    import numpy as np
    import torch
    out = {}
    for name in sorted(n for n in os.listdir(folder) if n.endswith(".safetensors")):
        with open(f"{folder}/{name}", "rb") as file:
            raw = file.read()
        size = struct.unpack("<Q", raw[:8])[0]
        for key, entry in json.loads(raw[8:8 + size]).items():
            if key == "__metadata__":
                continue
            begin, end = (8 + size + at for at in entry["data_offsets"])
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(raw[begin:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(raw[begin:end], {"F32": np.float32}[entry["dtype"]])
            out[key] = torch.from_numpy(values.reshape(entry["shape"]).copy())
    return out


def load_weights(model, folder):
    """Every tensor of the model, by the names of the released layout; experts are stacked there."""
    import torch
    stored, state = read_weights(folder), model.state_dict()
    for name, value in state.items():
        full = "language_model." + ("" if name.startswith("lm_head") else "model.") + name
        base, last = full.rsplit(".", 1)
        if last in ("w1", "w2", "w3"):
            new = torch.stack([stored[f"{base}.experts.{e}.{last}.weight"] for e in range(value.shape[0])])
        else:
            new = stored[full].flatten()[:value.numel()]  # A_log is padded
        state[name] = new.reshape(value.shape).to(value)
    model.load_state_dict(state)


def model_fields(path):
    """The fields of the baseline's Config, by ours."""
    with open(path, encoding="utf-8") as file:
        t = json.load(file)["text_config"]
    kda = t["linear_attn_config"]
    return {"vocab_size": t["vocab_size"], "hidden_size": t["hidden_size"], "num_hidden_layers": t["num_hidden_layers"],
            "full_attn_layers": kda["full_attn_layers"], "attn_res_block_size": t["attn_res_block_size"], "kda_heads": kda["num_heads"],
            "kda_head_dim": kda["head_dim"], "heads": t["num_attention_heads"], "q_lora_rank": t["q_lora_rank"], "kv_lora_rank": t["kv_lora_rank"],
            "nope": t["qk_nope_head_dim"], "rope": t["qk_rope_head_dim"], "v_dim": t["v_head_dim"], "intermediate_size": t["intermediate_size"],
            "experts": t["num_experts"], "topk": t["num_experts_per_token"], "shared": t["num_shared_experts"],
            "latent": t["routed_expert_hidden_size"], "moe_inter": t["moe_intermediate_size"], "scaling": t["routed_scaling_factor"]}


def baseline_definitions(o):
    """Runs the part of the baseline's script before its loop."""
    import numpy as np
    path = os.path.join(os.path.abspath(o.baseline), "train.py")
    with open(path, encoding="utf-8") as file:
        head, found, _ = file.read().partition(LOOP_BEGINS)
    if not found:
        raise SystemExit(f"train_peer: {path}: no loop that begins with {LOOP_BEGINS.strip()!r}: not the script this was made for")
    data = f"{o.work}/unused"  # it maps two files before its batches are ours
    os.makedirs(data, exist_ok=True)
    for name in ("train.bin", "val.bin"):
        np.zeros(4096, np.uint16).tofile(f"{data}/{name}")
    rows = o.step_tokens // o.micro_batches // o.sequence
    os.environ.update(CFG=json.dumps(model_fields(f"{o.work}/model.json")), MB=str(rows), ACC=str(o.micro_batches), DRY="1" if o.device == "cpu" else "0")
    sys.argv = [path, data, f"{o.work}/baseline", "0"]
    names = {"__name__": "baseline", "__file__": path}
    exec(compile(head, path, "exec"), names)  # pylint: disable=exec-used
    if (names["T"], names["MB"], names["ACC"]) != (o.sequence, rows, o.micro_batches):
        raise SystemExit(f"train_peer: the baseline takes {names['ACC']} x {names['MB']} sequences of {names['T']} tokens a step")
    return names


def cut_autotuning(most):
    """Fewer configurations a kernel of Triton: FLA tunes over twelve and more, which takes longer than 300 steps do."""
    from triton.runtime.autotuner import Autotuner
    init = Autotuner.__init__

    def thinned(self, fn, names, configs, *rest, **named):
        if configs:
            configs = configs[:: max(1, -(-len(configs) // most))]
        init(self, fn, names, configs, *rest, **named)
    Autotuner.__init__ = thinned


def train_baseline(o):
    import numpy as np
    import torch
    if o.fla_configs and o.device != "cpu":
        cut_autotuning(o.fla_configs)
    b, cuda = baseline_definitions(o), o.device != "cpu"
    model, T, rows = b["model"], b["T"], b["MB"]
    load_weights(model, f"{o.work}/first")
    batches = np.load(f"{o.work}/batches.npy", mmap_mode="r").reshape(o.steps, 3, o.micro_batches, rows, T)
    borders = statistics.fmean(float((batches[step, 2, ..., 1:] != 0).any(-1).mean()) for step in range(0, o.steps, 10))
    losses, marks = [], []

    def mark():
        event = torch.cuda.Event(enable_timing=True) if cuda else time.time()
        if cuda:
            event.record()
        marks.append(event)

    def seconds():
        if not cuda:
            return [y - x for x, y in zip(marks, marks[1:])]
        torch.cuda.synchronize()
        return [x.elapsed_time(y) / 1e3 for x, y in zip(marks, marks[1:])]

    def tell():
        result = {"losses": [float(x) for x in losses], "seconds": seconds(), "torch": torch.__version__, "windows_with_borders": borders}
        if cuda:
            result["allocated_gb"] = torch.cuda.max_memory_allocated() / 1e9
        write_json(f"{o.work}/baseline.json", result)
        print(f"baseline: step {len(losses)}, loss {result['losses'][-1]:.4f}, {statistics.median(result['seconds']) * 1e3:.1f} ms", file=sys.stderr, flush=True)

    model.train()
    mark()
    for step in range(o.steps):
        factor, total = rate(step, o.steps, o.warmup), 0.0
        for micro in range(o.micro_batches):
            ids, targets = (torch.from_numpy(batches[step, part, micro].astype(np.int64)).to(b["dev"]) for part in (0, 1))
            loss = b["loss_of"](ids, targets.masked_fill(targets < 0, -100)) / o.micro_batches
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group, base in zip(b["opt"].param_groups, b["base"]):
            group["lr"] = base * factor
        b["opt"].step()
        b["muon_step"](b["MLR"] * factor)
        b["balance"]()
        model.zero_grad(set_to_none=True)
        losses.append(total)
        mark()
        if step % 10 == 9 or step + 1 == o.steps:
            tell()


def start_baseline(o):
    watch = MemoryWatch(o.device)
    try:
        subprocess.run([o.torch_python, os.path.abspath(__file__), *sys.argv[1:], "--stages", "worker"], check=True)
    finally:
        memory = watch.finish()
    with open(f"{o.work}/baseline.json", encoding="utf-8") as file:
        result = json.load(file)
    write_json(f"{o.work}/baseline.json", dict(result, memory_gb=memory))


# Both.

def summary(o):
    sides = {}
    for name, path in [(k3_name(m), f"{o.work}/k3-{m}.json") for m in o.k3_micro_batches] + [("baseline", f"{o.work}/baseline.json")]:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                sides[name] = json.load(file)
    if not sides:
        raise SystemExit(f"train_peer: {o.work}: no figures of k3 or of the baseline yet")
    steps = min(len(side["losses"]) for side in sides.values())  # fewer than asked for if one was cut short
    flops = next(side["flops_per_token"] for side in sides.values() if "flops_per_token" in side)
    last = min(50, steps)
    for side in sides.values():
        side["last_loss"] = statistics.fmean(side["losses"][steps - last:steps])
        side["tokens_s"] = o.step_tokens / statistics.median(side["seconds"])
        side["mfu"] = flops * side["tokens_s"] / PEAK_FLOPS
    return {"steps": steps, "step_tokens": o.step_tokens, "sequence": o.sequence, "last": last, "flops_per_token": flops, "sides": sides}


def table(o):
    result = summary(o)
    sides, steps = list(result["sides"].values()), result["steps"]
    first, other = sides[0], sides[-1]

    def line(what, text, difference=""):
        print("| " + " | ".join([what, *map(text, sides), difference if "baseline" in result["sides"] else ""]) + " |")

    def gb(key):
        return lambda side: "" if side.get(key) is None else f"{side[key]:.1f}"

    print("| | " + " | ".join(result["sides"]) + " | first to last |\n" + "|---" * (len(sides) + 2) + "|")
    for at in (s - 1 for s in sorted({1, 25, 50, 100, 150, 200, 250, 300, steps}) if s <= steps):
        line(f"loss of step {at + 1}", lambda side, at=at: f"{side['losses'][at]:.4f}", f"{first['losses'][at] - other['losses'][at]:+.4f}")
    line(f"loss, mean of steps {steps - result['last'] + 1} to {steps}", lambda side: f"{side['last_loss']:.4f}",
         f"{first['last_loss'] - other['last_loss']:+.4f}")
    line("tokens/s, median step", lambda side: f"{side['tokens_s']:.0f}", f"{first['tokens_s'] / other['tokens_s']:.2f} x")
    line("MFU of 989 TFLOP/s", lambda side: f"{100 * side['mfu']:.1f} %")
    line("GPU memory in use at most, GB", gb("memory_gb"))
    line("of it allocated by tensors, GB", gb("allocated_gb"))
    if other.get("windows_with_borders"):
        print(f"\n{100 * other['windows_with_borders']:.1f} % of the windows have a border of documents within: k3 begins anew there, the baseline does not.")
    if o.json:
        write_json(o.json, result)


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--k3", default="build/dev/k3")
    p.add_argument("--model", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "hidden384.json"), help="config.json of the shape")
    p.add_argument("--tokenizer", default="models/k3-mini")
    p.add_argument("--text", nargs="+", default=[], help="text files; <|endoftext|> between documents becomes a blank line")
    p.add_argument("--data", help="prepared folder, instead of --text")
    p.add_argument("--sources", nargs="+", help="sources of it")
    p.add_argument("--baseline", help="folder with the baseline's train.py")
    p.add_argument("--torch-python", default=sys.executable, help="Python with PyTorch and flash-linear-attention")
    p.add_argument("--fla-configs", type=int, default=2, help="most configurations that a kernel of the baseline is tuned over (0: all)")
    p.add_argument("--work", required=True, help="folder for what is made")
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--warmup", type=int, default=100)
    p.add_argument("--sequence", type=int, default=1024)
    p.add_argument("--step-tokens", type=int, default=131072)
    p.add_argument("--micro-batches", type=int, default=2)
    p.add_argument("--k3-micro-batches", type=int, nargs="+", help="of k3, each a run of its own (default: as the baseline)")
    p.add_argument("--recipe", type=json.loads, default={}, help="fields of k3's recipe, as JSON")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--json", help="write all figures, losses of every step among them")
    p.add_argument("--stages", default="inputs,k3,baseline,table")
    o = p.parse_args(argv)
    if bool(o.data) != bool(o.sources):
        p.error("--data and --sources go together")
    if "inputs" in o.stages and not o.data and not o.text:
        p.error("--text or --data is wanted")
    o.k3_micro_batches = o.k3_micro_batches or [o.micro_batches]
    o.warmup = min(o.warmup, o.steps - 1)
    return o


def main():
    o = parse(sys.argv[1:])
    stages = {"inputs": make_inputs, "k3": train_k3, "baseline": start_baseline, "worker": train_baseline, "table": table}
    for name in o.stages.split(","):
        if name not in stages:
            raise SystemExit(f"train_peer: no stage '{name}'; there are: {', '.join(stages)}")
        stages[name](o)


if __name__ == "__main__":
    main()
