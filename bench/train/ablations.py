#!/usr/bin/env python3
"""Ablations on k3-nano: what each part of the recipe and of the architecture is worth, with the spread over seeds.

    ablations.py K3 OUT --tokenizer DIR --data DIR [--device cuda] [--jobs 10] [--seeds 0,1,2] [--steps 1000] [--only sign,qat]
    ablations.py K3 OUT --table [--json] [--plot curves.svg]      from the runs that are there

Each variant is configs/k3-nano.json with one thing changed. Rates come first: the optimizers and the sign update get a grid on the
first seed, and the best goes on to the others. All runs end in one step of rate 0 with experts as an export stores them, so that a
run is evaluated twice: as trained, and as exported. OUT/VARIANT@RATE-SEED holds config and log; a run that is done is not repeated.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT_OF_MEMORY = (6, 7)  # exit codes of k3; a GPU without memory may say either
LAST = 100  # steps whose load violation is averaged


def plain_residuals(model):
    del model["attn_res_block_size"]


def all_mla(model):
    """Every layer attends; ranks are such that attention has as many parameters as with four KDA layers (529,152 of 529,408)."""
    layers = range(1, model["num_hidden_layers"] + 1)
    model["linear_attn_config"].update(full_attn_layers=list(layers), kda_layers=[])
    model.update(q_lora_rank=80, kv_lora_rank=72)


# Name: what it is, fields of the recipe, change of the model, rate whose values are tried, values.
VARIANTS = {
    "base": ("per-head Muon, AttnRes, 4 KDA : 2 MLA, QB", {"matrices": "muon_per_head"}, None, "matrix_rate", (0.005, 0.01, 0.02, 0.04)),
    "muon": ("Muon on whole matrices", {"matrices": "muon"}, None, "matrix_rate", (0.005, 0.01, 0.02, 0.04)),
    "adamw": ("AdamW for matrices too", {"matrices": "adamw"}, None, "vector_rate", (0.002, 0.004, 0.008, 0.016)),
    "residual": ("plain residuals", {}, plain_residuals, None, ()),
    "mla": ("six MLA layers", {}, all_mla, None, ()),
    "sign": ("sign update of the router's bias", {"balancing": "sign"}, None, "balancing_rate", (0.001, 0.003, 0.01)),
    "unbalanced": ("no balancing", {"balancing": "none"}, None, None, ()),
    "qat": ("MXFP4 and MXFP8 in the last 30 % of the steps", {}, None, None, ()),
}


def phases_of(variant, sources, options):
    def phase(name, count, **more):
        return {"name": name, "steps": count, "sequence_tokens": options.sequence_tokens, "tokens_per_step": options.tokens_per_step,
                "sources": sources, **more}
    late = options.steps * 3 // 10 if variant == "qat" else 0
    phases = [phase("trained", options.steps - late)]
    if late:
        phases.append(phase("quantised", late, mxfp4_experts=True, mxfp8_activations=True))
    return phases + [phase("exported", 1, mxfp4_experts=True, new_schedule=True, learning_rate=0)]


def config_of(variant, rate, seed, options):
    config = json.loads((ROOT / "configs" / "k3-nano.json").read_text())
    manifest = json.loads((options.data / "manifest.json").read_text())
    _, recipe, change, rate_field, _ = VARIANTS[variant]
    text = config["model"]["text_config"]
    for part in (config["model"], text):
        part.update(bos_token_id=manifest["bos"], eos_token_id=manifest["end_of_message"], pad_token_id=manifest["pad"])
    text["vocab_size"] = manifest["vocab"]
    if change:
        change(text)
    config["recipe"].update(recipe)
    if rate is not None:
        config["recipe"][rate_field or "matrix_rate"] = rate
    if variant not in ("base", "muon", "adamw"):
        config["recipe"]["matrix_rate"] = options.base_rate
    sources = [{"name": s["name"], "weight": 1, **({"learn_all": True} if s["kind"] == "chat" else {})}
               for s in manifest["sources"] if s["split"] == "train"]
    for field in ("sample", "sample_every", "checkpoint_every"):
        config.pop(field)
    config.update(tokenizer=str(options.tokenizer), data=str(options.data), seed=seed, phases=phases_of(variant, sources, options),
                  evaluate_every=options.steps, evaluate_tokens=options.evaluate_tokens)
    return config


def records(folder):
    """Steps and evaluations (step -> bits per byte over all sources) of a run; None while it is not done."""
    path = folder / "log.jsonl"
    if not path.exists():
        return None
    steps, bits, size = [], {}, {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record["type"] == "step":
            steps.append(record)
        elif record["type"] == "evaluation":
            at = record["step"]
            bits[at] = bits.get(at, 0) + record["bits_per_byte"] * record["bytes"]
            size[at] = size.get(at, 0) + record["bytes"]
    evaluations = {at: bits[at] / size[at] for at in bits}
    total = sum(phase["steps"] for phase in json.loads((folder / "train.json").read_text())["phases"])
    return (steps, evaluations) if total in evaluations else None


def result_of(folder):
    done = records(folder)
    if done is None:
        return None
    steps, evaluations = done
    trained = [s for s in steps if s["phase"] != "exported"]
    at = len(trained)
    return {"trained": evaluations[at], "exported": evaluations[at + 1],
            "violation": statistics.fmean(s["load_violation"] for s in trained[-LAST:]),
            "violation_worst": statistics.fmean(s["load_violation_worst"] for s in trained[-LAST:]),
            "logit": max(s["largest_logit"] for s in trained),
            "seconds": sum(s["seconds"] for s in steps)}


def name_of(variant, rate, seed):
    return f"{variant}{'' if rate is None else f'@{rate:g}'}-{seed}"


def train(variant, rate, seed, options):
    folder = options.out / name_of(variant, rate, seed)
    if result_of(folder) is not None:
        return
    path = options.out / (folder.name + ".json")
    path.write_text(json.dumps(config_of(variant, rate, seed, options), indent=1))
    command = [options.k3, "train", path, "-o", folder, "--device", options.device, "-t", options.threads, "-q"]
    # Many processes that start at once may find too little memory for their contexts: tried again when others have ended.
    for wait in (5, 20, None):
        ended = subprocess.run([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if ended.returncode not in OUT_OF_MEMORY or wait is None:
            break
        time.sleep(wait)
    if result_of(folder) is None:
        # One that diverges is a result; what went wrong is kept beside it.
        (options.out / (folder.name + ".error")).write_text(ended.stderr)
        print(f"{folder.name}: no result (exit code {ended.returncode}): {ended.stderr.strip()[-300:]}", file=sys.stderr, flush=True)
        return
    if not options.keep:
        shutil.rmtree(folder / "checkpoints")


def best_rate(variant, options):
    """The value of the grid with the lowest held-out loss on the first seed; None where nothing is tried."""
    tried = {}
    for rate in VARIANTS[variant][4]:
        result = result_of(options.out / name_of(variant, rate, options.seeds[0]))
        if result is not None and math.isfinite(result["trained"]):
            tried[rate] = result["trained"]
    return min(tried, key=tried.get) if tried else None


def in_parallel(jobs, options):
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for running in [pool.submit(train, *job, options) for job in jobs]:
            running.result()


def train_all(options):
    options.out.mkdir(parents=True, exist_ok=True)
    first = options.seeds[0]
    # The rates of the base are those of whatever changes something else.
    optimizers = [v for v in ("base", "muon", "adamw") if v in options.only or v == "base"]
    in_parallel([(v, rate, first) for v in optimizers for rate in VARIANTS[v][4]], options)
    options.base_rate = best_rate("base", options)
    if options.base_rate is None:
        sys.exit("ablations.py: no run of the base ended; see OUT/base*.error")
    others = [v for v in options.only if v not in ("base", "muon", "adamw")]
    jobs = [(v, best_rate(v, options), seed) for v in optimizers for seed in options.seeds[1:]]
    jobs += [(v, None, seed) for v in others if not VARIANTS[v][4] for seed in options.seeds]
    jobs += [(v, rate, first) for v in others for rate in VARIANTS[v][4]]
    in_parallel(jobs, options)
    in_parallel([(v, best_rate(v, options), seed) for v in others if VARIANTS[v][4] for seed in options.seeds[1:]], options)


def spread(values):
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else None, "n": len(values)}


def table(options):
    rows, base = [], {}
    for variant, (what, _, _, field, values) in VARIANTS.items():
        rate = best_rate(variant, options)
        results = {seed: result_of(options.out / name_of(variant, rate, seed)) for seed in options.seeds}
        results = {seed: r for seed, r in results.items() if r is not None}
        if not results:
            continue
        if variant == "base":
            base = results
        row = {"variant": variant, "what": what, "rate": rate, "rate_field": field, "seconds": spread([r["seconds"] for r in results.values()])}
        for key in ("trained", "exported", "violation", "violation_worst", "logit"):
            row[key] = spread([r[key] for r in results.values()])
        row["cost_of_export"] = spread([r["exported"] - r["trained"] for r in results.values()])
        for key in ("trained", "exported"):
            paired = [r[key] - base[seed][key] for seed, r in results.items() if seed in base]
            row[f"{key}_to_base"] = spread(paired) if paired else None
        tried = {rate: result_of(options.out / name_of(variant, rate, options.seeds[0])) for rate in values}
        row["grid"] = {f"{rate:g}": r["trained"] for rate, r in tried.items() if r is not None}
        rows.append(row)
    return rows


def cell(value, digits=4, sign=""):
    if value is None:
        return ""
    return f"{value['mean']:{sign}.{digits}f}" + (f" ± {value['sd']:.{digits}f}" if value["sd"] is not None else "")


def print_table(rows):
    print("| variant | rate | held-out bits per byte, trained | to the base, same seed | exported | exported - trained | load violation | largest logit |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        rate = f"{row['rate']:g}" if row["rate"] is not None else ""
        print(f"| {row['what']} | {rate} | {cell(row['trained'])} | {'' if row['variant'] == 'base' else cell(row['trained_to_base'], sign='+')} | "
              f"{cell(row['exported'])} | {cell(row['cost_of_export'], sign='+')} | {cell(row['violation'], 3)} | {cell(row['logit'], 0)} |")
    for row in rows:
        if row["grid"]:
            print(f"\n{row['variant']}, {row['rate_field']} on the first seed: " + ", ".join(f"{r}: {b:.4f}" for r, b in row["grid"].items()))


def plot(options, rows, path, width=900, height=480, window=20):
    """Training loss of each variant, mean over seeds and over 20 steps, the first tenth left out."""
    curves = {}
    for row in rows:
        runs = [records(options.out / name_of(row["variant"], row["rate"], seed)) for seed in options.seeds]
        losses = [[s["loss"] for s in r[0] if s["phase"] != "exported"] for r in runs if r is not None]
        mean = [statistics.fmean(at) for at in zip(*losses)]
        smooth = [(i, statistics.fmean(mean[i - window:i])) for i in range(window, len(mean) + 1)]
        curves[row["what"]] = [p for p in smooth if p[0] >= len(mean) // 10]
    points = [p for curve in curves.values() for p in curve]
    low, high, last = min(y for _, y in points), max(y for _, y in points), max(x for x, _ in points)

    def place(x, y):
        return f"{50 + x / last * (width - 70):.1f},{20 + (high - y) / (high - low) * (height - 60):.1f}"
    colours = ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999"]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>']
    for (what, curve), colour in zip(curves.items(), colours):
        out.append(f'<polyline fill="none" stroke="{colour}" points="{" ".join(place(*p) for p in curve)}"/>')
        row = 40 + 16 * len([line for line in out if line.startswith("<polyline")])
        out.append(f'<text x="{width - 340}" y="{row}" fill="{colour}">{what}</text>')
    for value in (low, (low + high) / 2, high):
        x, y = place(0, value).split(",")
        out.append(f'<text x="{float(x) - 45:.0f}" y="{y}">{value:.2f}</text>')
    out += [f'<text x="{width // 2 - 60}" y="{height - 10}">steps, up to {last}; loss in nats a token</text>', "</svg>"]
    pathlib.Path(path).write_text("\n".join(out) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("k3", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, default=ROOT / "build" / "demo" / "tokenizer")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "build" / "demo" / "data", help="folder of k3 prepare (default: that of make train-demo)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--threads", type=int, default=2, help="of each run")
    parser.add_argument("--seeds", default="0,1,2", type=lambda text: [int(s) for s in text.split(",")])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sequence-tokens", type=int, default=1024)
    parser.add_argument("--tokens-per-step", type=int, default=4096)
    parser.add_argument("--evaluate-tokens", type=int, default=65536, help="of each held-out source")
    parser.add_argument("--only", default=list(VARIANTS), type=lambda text: text.split(","), help="variants: " + ", ".join(VARIANTS))
    parser.add_argument("--keep", action="store_true", help="keep checkpoints of finished runs")
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", help="an SVG file of the losses")
    options = parser.parse_args()
    unknown = [v for v in options.only if v not in VARIANTS]
    if unknown:
        parser.error(f"no variant {', '.join(unknown)}; there are {', '.join(VARIANTS)}")
    options.k3, options.out, options.data, options.tokenizer = (p.resolve() for p in (options.k3, options.out, options.data, options.tokenizer))
    options.base_rate = None
    if not options.table:
        if not (options.data / "manifest.json").exists():
            parser.error(f"{options.data} has no manifest.json; make it with k3 prepare")
        train_all(options)
    rows = table(options)
    if options.json:
        print(json.dumps(rows))
    else:
        print_table(rows)
    if options.plot and rows:
        plot(options, rows, options.plot)


if __name__ == "__main__":
    main()
