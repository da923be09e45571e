#!/usr/bin/env python3
"""Random small models of the program's own making, judged by the independent NumPy reference.

    oracle_test.py K3_BINARY

`k3 init` writes models of both families and of mixtures, with odd sizes; `k3 logits --policy exact` has to agree with
tools/oracle/k3_numpy_ref.py (float64 on the stored weights) within the tolerance of tests/data/oracle-models/README.md.
`k3 convert --experts mxfp4` has to pack as mxfp4_pack of the reference does, byte for byte.
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "oracle"))
import k3_numpy_ref as reference  # noqa: E402

TOLERANCE = 2e-3  # float32 against float64 on logits of RMS 2: tests/data/oracle-models/README.md
CLEAR_GAP = 0.01  # where the two best logits are further apart than this, the same one has to win

K3 = "tests/data/configs/k3.json"
KIMI = "tests/data/configs/kimi-linear-48b.json"
ORACLE = "tests/data/oracle-models/%s/config.json"

SMALL_K3 = dict(bos_token_id=0, eos_token_id=1, pad_token_id=2, media_placeholder_token_id=3, vocab_size=200, hidden_size=96,
                num_hidden_layers=5, intermediate_size=112, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=40,
                kv_lora_rank=36, qk_nope_head_dim=20, qk_rope_head_dim=12, v_head_dim=24, num_experts=9,
                num_experts_per_token=3, moe_intermediate_size=32, routed_expert_hidden_size=64, attn_res_block_size=2,
                **{"linear_attn_config.num_heads": 5, "linear_attn_config.head_dim": 16})
SMALL_KIMI = dict(bos_token_id=0, eos_token_id=1, pad_token_id=2, vocab_size=150, hidden_size=72, num_hidden_layers=6,
                  intermediate_size=100, num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=28, qk_nope_head_dim=20,
                  qk_rope_head_dim=4, v_head_dim=12, num_experts=7, num_experts_per_token=2, moe_intermediate_size=24,
                  **{"linear_attn_config.num_heads": 3, "linear_attn_config.head_dim": 24})

# name, config, seed, number of ids, changes
CASES = [
    ("k3", K3, 1, 40, SMALL_K3),
    ("k3-other-seed", K3, 20, 9, SMALL_K3),
    ("k3-one-expert", K3, 3, 17, dict(SMALL_K3, num_experts_per_token=1, num_shared_experts=1, attn_res_block_size=3)),
    ("k3-all-experts", K3, 4, 13, dict(SMALL_K3, num_experts=4, num_experts_per_token=4, routed_scaling_factor=1.7)),
    ("k3-wide-heads", K3, 5, 70, dict(SMALL_K3, hidden_size=128, **{"linear_attn_config.head_dim": 128,
                                                                   "linear_attn_config.num_heads": 2})),
    ("k3-every-layer-a-block", K3, 6, 12, dict(SMALL_K3, attn_res_block_size=1, num_hidden_layers=4)),
    ("kimi", KIMI, 7, 40, SMALL_KIMI),
    ("kimi-other-seed", KIMI, 8, 10, SMALL_KIMI),
    ("kimi-no-renormalisation", KIMI, 9, 10, dict(SMALL_KIMI, moe_renormalize="false", num_shared_experts=2)),
    ("flat-mixture", ORACLE % "mix-a", 10, 21, dict(hidden_size=80, vocab_size=130)),
    ("nested-mixture", ORACLE % "mix-b", 11, 21, dict(hidden_size=64, num_experts=6)),
]


def k3(*arguments):
    result = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=300, check=False)
    if result.returncode != 0:
        raise AssertionError("k3 %s: exit code %d\n%s" % (" ".join(arguments), result.returncode, result.stderr))
    return result.stdout


def make(folder, config, seed, changes, *more):
    sets = [part for name, value in changes.items() for part in ("--set", "%s=%s" % (name, value))]
    vision = ["--no-vision"] if config == K3 else []
    # Weights of 0.02 leave all logits near zero, where nothing could disagree.
    k3("init", os.path.join(ROOT, config), folder, "--seed", str(seed), "--set", "initializer_range=0.15", *vision, *sets, *more)


def reference_logits(folder, ids):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = reference.Cfg(json.load(file))
    model = reference.K3(config, reference.Weights(folder, np.float64), 1e-6)
    return model.forward(ids)[0]


def check_logits(folder, name, seed, count):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    vocab = config.get("text_config", config)["vocab_size"]
    ids = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    expected = reference_logits(folder, ids)
    top = np.sort(expected, 1)
    clear = top[:, -1] - top[:, -2] > CLEAR_GAP
    rms = float(np.sqrt((expected ** 2).mean()))
    assert rms > 0.05, "%s: logits of RMS %g show nothing" % (name, rms)
    for more in ([], ["--chunk", "1"], ["--chunk", "7", "--deterministic"], ["--cpu-isa", "scalar"]):
        out = os.path.join(folder, "logits.npy")
        k3("logits", folder, "--ids", ",".join(map(str, ids)), "--out", out, "--policy", "exact", "-t", "2", *more)
        found = np.load(out)
        assert found.shape == expected.shape, (name, found.shape, expected.shape)
        worst = float(np.abs(found - expected).max())
        assert worst <= TOLERANCE * max(1.0, rms / 2.0), "%s %s: differs by %g" % (name, more, worst)
        assert (found.argmax(1) == expected.argmax(1))[clear].all(), "%s %s: another token wins" % (name, more)
        print("  %-24s %-28s largest difference %.1e (RMS %.2f)" % (name, " ".join(more) or "whole prompt", worst, rms))


def check_packing(root):
    """Unpacks nothing: the source holds random BF16 experts with every sign and many sizes."""
    wide, packed = os.path.join(root, "wide"), os.path.join(root, "packed")
    make(wide, KIMI, 12, dict(SMALL_KIMI, hidden_size=64, moe_intermediate_size=32))
    k3("convert", wide, packed, "--experts", "mxfp4")
    source, target = reference.Shards(wide), reference.Shards(packed)
    compared = 0
    for name in source.t:
        if ".experts." not in name or "shared" in name:
            assert source.raw(name)[0].tobytes() == target.raw(name)[0].tobytes(), name
            continue
        codes, scales = reference.mxfp4_pack(source.get(name))
        stem = name[:-len("weight")]
        assert target.raw(stem + "weight_packed")[0].tobytes() == codes.tobytes(), name + " codes"
        assert target.raw(stem + "weight_scale")[0].tobytes() == scales.tobytes(), name + " scales"
        compared += 1
    assert compared >= 7 * 3, compared
    print("  %d expert matrices packed alike" % compared)
    check_logits(packed, "packed", 12, 15)


def main():
    with tempfile.TemporaryDirectory() as root:
        for name, config, seed, count, changes in CASES:
            folder = os.path.join(root, name)
            make(folder, config, seed, changes, "--shards", str(1 + seed % 3))
            check_logits(folder, name, seed, count)
        check_packing(root)
    print("%d models agree" % (len(CASES) + 1))


if __name__ == "__main__":
    BINARY = sys.argv[1]
    main()
