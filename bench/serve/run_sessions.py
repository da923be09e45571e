#!/usr/bin/env python3
"""What the prefix cache saves on agent sessions: run_sessions.py --k3 build/release/k3 --model models/k3-mini

Replays the trace one request at a time, in file order, against `k3 serve` twice: without the prefix cache and with it.
Prints the times to the first token, their ratio, and how well they follow from the tokens that had to be computed. What N
tokens behind C cached ones should take is measured beforehand, on a grid of N and C with the same server and client:
TTFT = a + b N + c N (C + N / 2) + d C is fitted to it (the third term is MLA's pairs, the last what a long prompt costs
although it hits: it is parsed, tokenized and looked up) and held against both runs. The hits are compared with the naive rule
(check_hits.py).
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile

from check_hits import naive_hits

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
from serve_process import ServeProcess  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def serve(args, *options):
    """A server with idle sequences off, so that checkpoints are what is measured."""
    server = ServeProcess(args.k3, args.model, "-q", "--no-keep-idle", "--max-running", "2", "--block-tokens",
                          str(args.block_tokens), "--pool-bytes", args.pool, "-t", str(args.threads), *options,
                          prefix=args.prefix.split())
    print("$", " ".join(server.command), flush=True)
    return server


def replay(args, trace, *options):
    server = serve(args, *options)
    command = [args.k3, "loadgen", server.url, "--trace", trace, "--sequential", "--scale", str(args.scale), "--max-output", "16",
               "--warmup", "2", "--timeout", "3600", "--json"]
    if args.limit and trace == args.trace:
        command += ["--limit", str(args.limit)]
    print("$", " ".join(command), flush=True)
    try:
        out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    finally:
        server.stop()
    run = json.loads(out)
    bad = [r for r in run["requests"] if r["outcome"] != "ok"]
    if bad:
        sys.exit(f"{len(bad)} requests failed: {bad[0]}")
    return run


def columns(request):
    cached = request["cached_tokens"]
    computed = request["prompt_tokens"] - cached
    return [1.0, computed, computed * (cached + computed / 2), cached]


def ttft(request):
    return request["first_token_s"] - request["start_s"]


def solve(matrix, right):
    """Gauss with row exchange."""
    size = len(right)
    rows = [list(row) + [value] for row, value in zip(matrix, right)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(size):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i])]
    return [rows[i][size] / rows[i][i] for i in range(size)]


def calibration_trace(args, path):
    """A prompt of C tokens, then prompts that continue it by N other tokens; every one ends within a block."""
    block = round(args.block_tokens / args.scale)
    fresh = iter(range(1, 1 << 30))
    records = []

    def add(prefix, tokens):
        length = len(prefix) * block + round(tokens / args.scale)
        ids = prefix + [next(fresh) for _ in range(-(-length // block) - len(prefix))]
        records.append({"timestamp": 1000 * len(records), "input_length": length, "output_length": 16, "hash_ids": ids})
        return ids

    for _ in range(args.rounds):
        for context in (0, 8, 32, 96, 192):
            prefix = add([], context * args.block_tokens + 10)[:context] if context else []
            for tokens in (20, 70, 200, 600, 1800):
                add(prefix, tokens)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def calibrate(args):
    with tempfile.TemporaryDirectory() as folder:
        return replay(args, calibration_trace(args, os.path.join(folder, "calibration.jsonl")), "--checkpoints", "end")


def fit(requests):
    """Least squares of relative errors; the columns are scaled to be of one size."""
    points = [([value / ttft(r) for value in columns(r)]) for r in requests]
    size = len(points[0])
    scale = [max(point[k] for point in points) for k in range(size)]
    points = [[value / s for value, s in zip(point, scale)] for point in points]
    normal = [[sum(p[i] * p[j] for p in points) for j in range(size)] for i in range(size)]
    return [value / s for value, s in zip(solve(normal, [sum(p[i] for p in points) for i in range(size)]), scale)]


def spread(name, requests, model):
    """How measured times stand to predicted ones."""
    ratios = sorted(ttft(r) / sum(k * x for k, x in zip(model, columns(r))) for r in requests)
    within = sum(1 / 1.3 <= ratio <= 1.3 for ratio in ratios) / len(ratios)
    at = lambda share: ratios[round(share * (len(ratios) - 1))]
    print(f"{name:14} | {within:7.1%} | {sum(r > 1.3 for r in ratios)} above | " +
          "  ".join(f"{share:.0%} {at(share):.2f}" for share in (0, 0.05, 0.5, 0.95, 1)))


def table(runs):
    print(f"\n{'':14} |  TTFT, sum |    median |   largest | prompt tokens | computed")
    for name, run in runs.items():
        times = [ttft(r) for r in run["requests"]]
        prompt = sum(r["prompt_tokens"] for r in run["requests"])
        computed = prompt - sum(r["cached_tokens"] for r in run["requests"])
        print(f"{name:14} | {sum(times):8.2f} s | {statistics.median(times) * 1e3:6.0f} ms | {max(times) * 1e3:6.0f} ms | "
              f"{prompt:13,} | {computed:,}")


def compare_hits(args, run):
    with open(args.trace, encoding="utf-8") as file:
        records = [json.loads(line) for line in file][:len(run["requests"])]
    expected = naive_hits(records, args.scale, args.block_tokens)
    differ = sum((want[0], want[2]) != (got["prompt_tokens"], got["cached_tokens"])
                 for want, got in zip(expected, run["requests"]))
    print(f"hits: naive rule {sum(want[2] for want in expected):,} tokens, "
          f"server {sum(r['cached_tokens'] for r in run['requests']):,}; {differ} of {len(expected)} requests differ")
    return differ == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k3", default="build/release/k3", help="default %(default)s")
    parser.add_argument("--model", default="models/k3-mini", help="default %(default)s")
    parser.add_argument("--trace", default=os.path.join(HERE, "agent_sessions_0_11.jsonl"))
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--block-tokens", type=int, default=128, help="512 of the trace after scaling; default %(default)s")
    parser.add_argument("--pool", default="4GiB", help="of the server, enough for all; default %(default)s")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="of the calibration; default %(default)s")
    parser.add_argument("--limit", type=int, help="only the first N requests")
    parser.add_argument("--prefix", default="", help="in front of the server's command, like 'nice -n -5'")
    parser.add_argument("--json", help="file for both runs")
    parser.add_argument("--reuse", help="take both runs from this file of --json instead of measuring")
    args = parser.parse_args()
    if args.reuse:
        with open(args.reuse, encoding="utf-8") as file:
            runs = json.load(file)
    else:
        print(datetime.date.today(), flush=True)
        runs = {"calibration": calibrate(args), "with cache": replay(args, args.trace, "--checkpoints", "end"),
                "without": replay(args, args.trace, "--no-prefix-cache")}
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(runs, file)
    table(runs)
    total = {name: sum(ttft(r) for r in run["requests"]) for name, run in runs.items()}
    print(f"\nwith over without: 1 / {total['without'] / total['with cache']:.1f}")
    model = fit(runs["calibration"]["requests"])
    print(f"fit: TTFT = {model[0] * 1e3:.2f} ms + {model[1] * 1e6:.1f} us x N + {model[2] * 1e9:.2f} ns x N (C + N / 2) + "
          f"{model[3] * 1e6:.2f} us x C\n")
    print(f"{'':14} | in 1.3x |          | measured over predicted: least, quantiles, most")
    for name, run in runs.items():
        spread(name, run["requests"], model)
    return 0 if compare_hits(args, runs["with cache"]) else 1


if __name__ == "__main__":
    sys.exit(main())
