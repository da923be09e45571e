#!/usr/bin/env python3
"""Measures k3 and other programs that run Kimi K3 on a CPU, on the same weights, in alternating order.

    run_peers.py MODEL --k3 build/release/k3 [--llama-bench PATH --gguf FILE] [--kimi-c PATH] [--kimi-rust PATH]
                 [--colibri PATH] [-p 512] [-n 64] [-t 1,2] [--rounds 5] [--json OUT] [--check]

Each round runs every program once per thread count; odd rounds in the opposite order. Reported: medians over the rounds, the
spread (largest less smallest, over the median), and the median of the rounds' ratios "k3 over this program", so that a
slow minute of the machine hits both sides. Beside each figure stands how many processors others kept busy meanwhile.
--check compares logits of a short prompt instead (needs NumPy). See README.md for how to build the programs.
"""
import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from programs import Colibri, K3, KimiC, LlamaBench, ParseError, Task


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="checkpoint folder in the released layout")
    parser.add_argument("--k3", required=True)
    parser.add_argument("--policies", default="bf16,exact", help="of k3; ratios are those of the first (default %(default)s)")
    parser.add_argument("--llama-bench")
    parser.add_argument("--gguf", help="MODEL as GGUF, by tools/oracle/k3_to_gguf.py")
    parser.add_argument("--kimi-c")
    parser.add_argument("--kimi-rust")
    parser.add_argument("--colibri", help="its kimi_k3; measured twice, see README.md")
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--decode", type=int, default=64)
    parser.add_argument("-t", "--threads", default="1,2", help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpus", help="processors the programs may use, as of taskset -c; the first T of them with T threads")
    parser.add_argument("--json", help="file for every single measurement")
    parser.add_argument("--check", action="store_true", help="compare logits, measure nothing")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds a command may take")
    args = parser.parse_args()
    if bool(args.llama_bench) != bool(args.gguf):
        parser.error("--llama-bench and --gguf go together")
    return args


def make_programs(args):
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    vocab = config.get("text_config", config)["vocab_size"]
    size = sum(os.path.getsize(os.path.join(args.model, n)) for n in os.listdir(args.model) if n.endswith(".safetensors"))
    task = Task(args.model, args.gguf, args.prompt, args.decode, 32, math.ceil(size / 1e9), vocab)
    programs = [K3(args.k3, task, policy) for policy in args.policies.split(",")]
    if args.llama_bench:
        programs.append(LlamaBench(args.llama_bench, task))
    if args.kimi_c:
        programs.append(KimiC("kimi-k3-in-c", args.kimi_c, task, "OMP_NUM_THREADS"))
    if args.kimi_rust:
        programs.append(KimiC("kimi-k3-in-rust", args.kimi_rust, task, "RAYON_NUM_THREADS"))
    if args.colibri:
        programs += [Colibri(args.colibri, task, exact) for exact in (True, False)]
    return task, programs


def commit_of(path):
    """The commit a program was built from, if it lies in a clone."""
    command = ["git", "-C", os.path.dirname(os.path.realpath(path)), "log", "-1", "--format=%H %cs"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or None


def busy_seconds():
    """Processor seconds used on this machine since it started, by everyone."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def execute(command, threads, args):
    """Runs one command; returns its output and the mean number of processors that others kept busy."""
    argv, environment = command
    if args.cpus:
        argv = ["taskset", "-c", ",".join(args.cpus.split(",")[:threads])] + argv
    busy, mine, start = busy_seconds(), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:  # some programs leave files where they run
        result = subprocess.run(argv, env={**os.environ, **environment}, cwd=folder, capture_output=True, text=True,
                                errors="replace", timeout=args.timeout, check=False)
    wall, usage = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    own = usage.ru_utime + usage.ru_stime - mine.ru_utime - mine.ru_stime
    if result.returncode != 0:
        raise ParseError(f"exit code {result.returncode}\n{result.stdout[-1000:]}\n{result.stderr[-2000:]}")
    return result.stdout, result.stderr, max(0.0, (busy_seconds() - busy - own) / wall)


def measure(program, threads, args):
    rates, others = {}, []
    for kind, command in program.commands(threads).items():
        out, err, busy = execute(command, threads, args)
        try:
            rates.update(program.parse(kind, out, err))
        except (ValueError, KeyError, StopIteration) as error:
            raise ParseError(f"{error!r} in the output:\n{out[-2000:]}") from error
        others.append(busy)
    return {"prefill": rates["prefill"], "decode": rates["decode"], "others": max(others)}


def run_rounds(programs, thread_counts, args):
    rows = []
    for number in range(args.rounds):
        order = programs if number % 2 == 0 else programs[::-1]
        for threads in thread_counts:
            for program in order:
                try:
                    result = measure(program, threads, args)
                except (ParseError, subprocess.TimeoutExpired) as error:
                    print(f"{program.name}, {threads} threads, round {number}: {error}", file=sys.stderr)
                    continue
                rows.append({"round": number, "program": program.name, "threads": threads, **result})
                print(f"round {number}  {program.name:20} {threads} threads  prefill {result['prefill']:8.1f}  decode "
                      f"{result['decode']:7.2f}  others {result['others']:.2f}", file=sys.stderr, flush=True)
    return rows


def summarise(rows, first):
    """One line a program and thread count, with ratios to program `first` over the rounds in which both ran."""
    base = {(r["round"], r["threads"]): r for r in rows if r["program"] == first}
    lines = []
    for threads, name in dict.fromkeys((r["threads"], r["program"]) for r in rows):
        mine = [r for r in rows if r["program"] == name and r["threads"] == threads]
        line = {"program": name, "threads": threads, "rounds": len(mine),
                "others": statistics.median(r["others"] for r in mine)}
        for key in ("prefill", "decode"):
            values = [r[key] for r in mine]
            pairs = [base[r["round"], threads][key] / r[key] for r in mine if (r["round"], threads) in base]
            line[key] = statistics.median(values)
            line[key + "_spread"] = (max(values) - min(values)) / line[key]
            line[key + "_ratio"] = statistics.median(pairs) if pairs else None
        lines.append(line)
    return sorted(lines, key=lambda line: line["threads"])


def table(lines, args, first):
    text = [f"| program | threads | prefill {args.prompt} | spread | decode {args.decode} | spread "
            f"| {first} over it: prefill | decode | others busy |", "|---|---|---|---|---|---|---|---|---|"]
    for line in lines:
        ratios = ["-" if line[k] is None else f"{line[k]:.2f}" for k in ("prefill_ratio", "decode_ratio")]
        text.append(f"| {line['program']} | {line['threads']} | {line['prefill']:.1f} | {line['prefill_spread']:.0%} | "
                    f"{line['decode']:.2f} | {line['decode_spread']:.0%} | {ratios[0]} | {ratios[1]} | {line['others']:.2f} |")
    return "\n".join(text)


def check_logits(programs, task, threads, args):
    """Every program that can print logits, against `k3 --policy exact` on the same 16 ids. Returns the number that fail."""
    import numpy as np  # only here
    ids, failed = task.ids[:16], 0
    with tempfile.TemporaryDirectory() as folder:
        reference = os.path.join(folder, "reference.npy")
        execute(K3(args.k3, task, "exact").logits(ids, reference, threads), threads, args)
        reference = np.load(reference).astype(np.float64)
        for program in programs:
            if program.logits is None:
                print(f"{program.name:20} prints no logits")
                continue
            path = os.path.join(folder, "logits.npy")
            execute(program.logits(ids, path, threads), threads, args)
            values = np.load(path) if isinstance(program, K3) else np.fromfile(path, np.float32)
            values = values.reshape(-1, reference.shape[1]).astype(np.float64)
            wanted = reference[-len(values):]  # some print the last position only
            error = math.sqrt(((values - wanted) ** 2).mean() / (wanted ** 2).mean())
            same = int((values.argmax(-1) == wanted.argmax(-1)).sum())
            bad = not error < 1e-2 if program.exact else not np.isfinite(values).all()
            failed += bad
            print(f"{program.name:20} relative rms error {error:.2e}, same best token {same}/{len(values)}"
                  f"{'  WRONG' if bad else ''}")
    return failed


def main():
    args = arguments()
    for name in ("model", "k3", "llama_bench", "gguf", "kimi_c", "kimi_rust", "colibri", "json"):
        if getattr(args, name):
            setattr(args, name, os.path.abspath(getattr(args, name)))
    task, programs = make_programs(args)
    thread_counts = [int(t) for t in args.threads.split(",")]
    if args.check:
        return 1 if check_logits(programs, task, max(thread_counts), args) else 0
    rows = run_rounds(programs, thread_counts, args)
    if not rows:
        return 1
    lines = summarise(rows, programs[0].name)
    print(table(lines, args, programs[0].name))
    if args.json:
        report = {"model": os.path.basename(args.model), "prompt": args.prompt, "decode": args.decode, "cpus": os.cpu_count(),
                  "commits": {p.name: commit_of(p.path) for p in programs}, "summary": lines, "measurements": rows}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    return 0 if len(rows) == len(programs) * len(thread_counts) * args.rounds else 1


if __name__ == "__main__":
    sys.exit(main())
