#!/usr/bin/env python3
"""Every epsilon of the model at its own site, whole model against the float64 reference.

A random checkpoint is changed so that the input of one norm has a norm of about 1e-3 (or its square sum is about 1e-6):
there 1e-5 and 1e-6 give visibly different logits. `k3 logits` must agree with the reference within the tolerance of
tests/data/oracle-models (2e-3), and the reference with the wrong epsilon must differ by at least five times that, so that
no case can pass by accident. usage: eps_test.py K3_BINARY SOURCE_DIR
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

TOLERANCE = 2e-3
IDS = list(range(3, 27))
L2 = "+ 1e-6)\n        q, k, v = unit"  # the KDA query and key norm in the reference's source


def reference(source, l2_eps="1e-6"):
    """The reference as a module; the L2 epsilon is written in its source, so the wrong one is made by editing it."""
    text = open(os.path.join(source, "tools/oracle/k3_numpy_ref.py")).read()
    assert L2 in text
    scope = {"__name__": "reference"}
    exec(compile(text.replace(L2, L2.replace("1e-6", l2_eps)), "k3_numpy_ref.py", "exec"), scope)
    return scope


def tensors_of(ref, folder):
    shards = ref["Shards"](folder)
    return {k: (v[2]["dtype"], shards.raw(k)[0]) for k, v in shards.t.items()}


def scale(ref, tensors, suffixes, factor):
    """Multiplies the named tensors by a power of two, which BF16 and MXFP4 scales hold exactly."""
    touched = 0
    for name, (dtype, array) in list(tensors.items()):
        if not name.endswith(tuple(suffixes)):
            continue
        touched += 1
        if dtype == "U8":
            tensors[name] = (dtype, (array.astype(np.int32) + int(np.log2(factor))).astype(np.uint8))
        elif dtype == "BF16":
            tensors[name] = (dtype, ref["bf16_bits"](ref["bf16_value"](array) * np.float32(factor)))
        else:
            tensors[name] = (dtype, array * np.float32(factor))
    assert touched > 0, suffixes


SMALL = 2.0 ** -10
STREAM = ("embed_tokens.weight", "o_proj.weight", "mlp.down_proj.weight", "routed_expert_up_proj.weight",
          "shared_experts.down_proj.weight")
# site: tensors made small, how the reference is made wrong
SITES = {
    "layer norms, AttnRes, final norm": (STREAM, "config"),
    "latent MoE norm": (("w2.weight_scale",), "config"),
    "KDA output norm": (("v_conv1d.weight",), "config"),
    "q_a_layernorm": (("q_a_proj.weight",), "mla"),
    "kv_a_layernorm": (("kv_a_proj_with_mqa.weight",), "mla"),
    "KDA query and key": (("q_conv1d.weight", "k_conv1d.weight"), "l2"),
}


def logits(ref, folder, mla_eps=1e-6, eps=None):
    config = ref["Cfg"](json.load(open(os.path.join(folder, "config.json"))))
    if eps is not None:
        config.eps = eps
    model = ref["K3"](config, ref["Weights"](folder, np.float64), mla_eps)
    model.gaps = {}
    out, _ = model.forward(IDS)
    return out, min(float(g.min()) for g in model.gaps.values())


def wrong_logits(kind, source, folder):
    if kind == "l2":
        return logits(reference(source, "1e-5"), folder)[0]
    ref = reference(source)
    return logits(ref, folder, mla_eps=1e-5)[0] if kind == "mla" else logits(ref, folder, eps=1e-6)[0]


def check(binary, source, site, scratch):
    suffixes, kind = SITES[site]
    ref = reference(source)
    for seed in range(1, 40):
        folder = os.path.join(scratch, f"{kind}-{seed}")
        sys.argv = ["k3", "gen", folder, "--seed", str(seed), "--layers", "5", "--hidden", "96", "--topk", "2", "--experts", "6"]
        stdout, sys.stdout = sys.stdout, open(os.devnull, "w")
        ref["main"]()
        sys.stdout = stdout
        tensors = tensors_of(ref, folder)
        scale(ref, tensors, suffixes, SMALL)
        for name in os.listdir(folder):
            if name.endswith(".safetensors"):
                ref["write_shard"](os.path.join(folder, name), [(k, d, a) for k, (d, a) in tensors.items()])
        expected, margin = logits(ref, folder)
        if margin > 2e-4:  # no expert may flip through float32
            break
    else:
        raise SystemExit(f"{site}: no seed with clear router margins")
    visible = np.abs(wrong_logits(kind, source, folder) - expected).max()
    worst = 0.0
    for extra in ([], ["--deterministic"], ["--chunk", "1"]):
        out = os.path.join(scratch, "logits.npy")
        subprocess.run([binary, "logits", folder, "--ids", ",".join(map(str, IDS)), "--out", out, "--policy", "exact", *extra],
                       check=True, stderr=subprocess.DEVNULL)
        worst = max(worst, float(np.abs(np.load(out) - expected).max()))
    ok = worst < TOLERANCE and visible > 5 * TOLERANCE
    print(f"{'ok  ' if ok else 'FAIL'} {site}: error {worst:.1e}, a wrong epsilon would give {visible:.1e}")
    return ok


def main():
    binary, source = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as scratch:
        results = [check(binary, source, site, scratch) for site in SITES]
    return 0 if all(results) else 1


sys.exit(main())
