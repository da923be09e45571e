#!/usr/bin/env python3
"""Runs the benches of the ops and prints one JSON line a case, held against this machine's ceilings.

    run_micro.py BUILD_DIR [--filter REGEX] [--repetitions N] [--min-time SECONDS] [--list]

BUILD_DIR holds k3 and k3_ops_bench. Fields of a line: case, device, isa, dtype, threads, time_us, gflops, gbps, share, bound,
ceiling, commit. Times are medians; share is the larger of gflops and gbps over its ceiling, measured before the benches.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

ISAS = ["scalar", "avx2", "avx512", "avx512bf16", "amx"]


def device_name(cpuinfo="/proc/cpuinfo"):
    try:
        with open(cpuinfo, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


def commit_of(folder):
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def threads_of(name):
    match = re.search(r"threads:(\d+)", name)
    return int(match[1]) if match else 1


def isa_of(name):
    """The level that a case names: in its capture (".../avx512_bf16/..."), else in its argument "isa:2"."""
    word = re.search(r"(?:^|[/_:])(scalar|avx2|avx512bf16|avx512|amx)(?:[/_:]|$)", name)
    if word:
        return word[1]
    number = re.search(r"isa:(\d+)", name)
    return ISAS[int(number[1])] if number and int(number[1]) < len(ISAS) else "best"


def ceilings_of(document):
    """(threads, name) -> rate, from `k3 bench ceiling --json`."""
    return {(entry["threads"], rate["name"]): rate["median"] for entry in document["ceilings"] for rate in entry["rates"]}


def flops_ceiling(ceilings, threads, isa, exact):
    """The fastest arithmetic that the level has: a kernel is not excused for leaving a unit unused. `exact` is FP32."""
    allowed = {"scalar": ["fp32 scalar"], "avx2": ["fp32 avx2"], "avx512": ["fp32 avx512"],
               "avx512bf16": ["bf16 dot"], "amx": ["amx"]}.get(isa)
    rates = [rate for (count, name), rate in ceilings.items()
             if count == threads and name != "read" and (allowed is None or name in allowed)
             and (not exact or name.startswith("fp32"))]
    return max(rates, default=None)


def line_of(result, ceilings, device, commit):
    name = result.get("run_name", result["name"])
    threads, isa = threads_of(name), isa_of(name)
    scale = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}[result.get("time_unit", "ns")]
    gflops, gbps = result.get("GFLOP/s"), result.get("GB/s")
    shares = []
    for bound, value, ceiling in (("flops", gflops, flops_ceiling(ceilings, threads, isa, "/exact/" in name)),
                                  ("read", gbps, ceilings.get((threads, "read")))):
        if value and ceiling:
            shares.append((value * 1e9 / ceiling, bound, ceiling / 1e9))
    share, bound, ceiling = max(shares, default=(None, None, None))

    def rounded(value):
        return None if value is None else float(f"{value:.4g}")
    return {"case": re.sub(r"/real_time$", "", name), "device": device, "isa": isa, "dtype": result.get("label") or None,
            "threads": threads, "time_us": rounded(result["real_time"] * scale), "gflops": rounded(gflops),
            "gbps": rounded(gbps), "share": rounded(share), "bound": bound, "ceiling": rounded(ceiling), "commit": commit}


def medians(document):
    """One result a case: repetitions are folded here, so that single runs (--repetitions 1) need no other path."""
    groups = {}
    for result in document["benchmarks"]:
        if result.get("run_type") == "aggregate" or result.get("error_occurred"):
            continue
        groups.setdefault(result.get("run_name", result["name"]), []).append(result)
    for runs in groups.values():
        folded = dict(runs[0])
        for key in ("real_time", "GFLOP/s", "GB/s"):
            if key in folded:
                folded[key] = statistics.median(run[key] for run in runs)
        yield folded


def run(command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--filter", default=".")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--min-time", type=float, default=0.1)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    bench, k3 = os.path.join(options.build, "k3_ops_bench"), os.path.join(options.build, "k3")
    for program in (bench, k3):
        if not os.access(program, os.X_OK):
            sys.exit(f"run_micro.py: {program} is not there; build it with `make bench-micro` or "
                     "`cmake --preset bench && cmake --build --preset bench --target k3 k3_ops_bench`")
    names = run([bench, "--benchmark_list_tests", f"--benchmark_filter={options.filter}"]).split("\n")
    names = [name for name in names if name and not name.startswith("Failed to match")]
    if options.list or not names:
        print("\n".join(names))
        return 0 if names else 1
    counts = ",".join(str(c) for c in sorted({threads_of(name) for name in names}))
    ceilings = ceilings_of(json.loads(run([k3, "bench", "ceiling", "-t", counts, "--json"])))
    device, commit = device_name(), commit_of(os.path.dirname(os.path.abspath(__file__)))
    # One bench at a time: lines appear as they are ready, and a bench that dies names itself.
    for prefix in dict.fromkeys(name.split("/")[0] + ("/" + name.split("/")[1] if ":" not in name.split("/")[1] else "")
                                if "/" in name else name for name in names):
        chosen = [name for name in names if name == prefix or name.startswith(prefix + "/")]
        pattern = "^(" + "|".join(re.escape(name) for name in chosen) + ")$"
        document = json.loads(run([bench, f"--benchmark_filter={pattern}", "--benchmark_format=json",
                                   f"--benchmark_repetitions={options.repetitions}",
                                   f"--benchmark_min_time={options.min_time}"]))
        for result in medians(document):
            print(json.dumps(line_of(result, ceilings, device, commit)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
