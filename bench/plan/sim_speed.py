#!/usr/bin/env python3
"""How fast `k3 sim` is: sim_speed.py [--k3 build/release/k3] [--repetitions 3] [--json]

Three runs, each in a process of its own: the recorded conversation trace (12,031 requests) on one thread; a million lone requests on
1,000 GPUs and a million turns of sessions on 1,000 GPUs, both on two threads. Told are the median wall time, CPU time and the most
memory that was resident, beside what is asked of the program: 10 s; 10 minutes and 2 GB.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FLEET = ["--hw", "b300", "--gpus", "8", "--replicas", "125", "-t", "2", "-n", "1000000", "--output", "lognormal:300:0.8"]
CASES = [
    ("conversation trace, 16 GPUs, 1 thread", 12031, 10, 2e9,
     ["k3", os.path.join(ROOT, "tests/data/traces/mooncake_conversation.jsonl.zst"), "--hw", "h200", "--gpus", "16", "-t", "1"]),
    ("a million requests, 1,000 GPUs, 2 threads", 1_000_000, 600, 2e9,
     ["k3", "synthetic", "--rate", "100", "--input", "lognormal:4096:1", *FLEET]),
    ("a million turns of sessions, 1,000 GPUs, 2 threads", 1_000_000, 600, 2e9,
     ["k3", "synthetic", "--rate", "20", "--turns", "8", "--think-ms", "5000", "--shared-prefix", "16384", "--input", "lognormal:2048:1", *FLEET]),
]


def run_once(k3, arguments):
    """Wall seconds, CPU seconds and resident bytes of one run; it has to answer every request."""
    begin = time.perf_counter()
    process = subprocess.Popen([k3, "sim", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    if status != 0:
        sys.exit(f"k3 sim {' '.join(arguments)} failed: status {status}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k3", default=os.path.join(ROOT, "build/release/k3"))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object a line in place of the table")
    args = parser.parse_args()
    rows = []
    for name, requests, most_seconds, most_bytes, arguments in CASES:
        runs = [run_once(args.k3, arguments) for _ in range(args.repetitions)]
        if f"{requests:,} of {requests:,} requests done" not in runs[0][3]:
            sys.exit(f"{name}: not all requests were answered:\n{runs[0][3]}")
        wall, cpu, memory = (statistics.median(run[i] for run in runs) for i in range(3))
        rows.append({"case": name, "requests": requests, "wall_s": wall, "cpu_s": cpu, "resident_bytes": memory,
                     "requests_per_second": requests / wall, "most_wall_s": most_seconds, "most_resident_bytes": most_bytes})
    if args.json:
        for row in rows:
            print(json.dumps(row))
    else:
        print(f"{'case':52} {'wall':>8} {'CPU':>8} {'memory':>8} {'requests/s':>11}  asked")
        for r in rows:
            print(f"{r['case']:52} {r['wall_s']:6.1f} s {r['cpu_s']:6.1f} s {r['resident_bytes'] / 1e6:5.0f} MB {r['requests_per_second']:11,.0f}"
                  f"  {r['most_wall_s']:.0f} s, {r['most_resident_bytes'] / 1e9:.0f} GB")
    late = [r["case"] for r in rows if r["wall_s"] > r["most_wall_s"] or r["resident_bytes"] > r["most_resident_bytes"]]
    if late:
        sys.exit(f"too slow or too large: {', '.join(late)}")


if __name__ == "__main__":
    main()
