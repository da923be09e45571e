#!/usr/bin/env python3
"""Our CUDA kernels beside other people's, one family after another, in one run: medians of graph replays and of eager calls, L2 overwritten
before each. Peers are what can be imported: fla (flash-linear-attention), flash_kda, flash_mla, and PyTorch's grouped_mm. A line a case, a
table at the end: ours / peer, below 1 ours is faster.

    K3_KERNELS=build/dev/libk3kernels.so python3 bench/peers/gpu_peers.py [--families prefill,decode,attnres,mla,moe] [--quick]

prefill: heads 96 and 12, 1,024 to 131,072 tokens and 8 packed sequences; gates N(0, 1), gates of -8 (nothing is forgotten), keys alike (0.99).

FLA compiles for minutes at first: --warm runs everything once, untimed. Several processes at once, --shard 0/8 to 7/8, fill Triton's cache, each
with a part of the configurations; --fla-configs 6 cuts its autotuning lists.
"""
import argparse
import functools
import importlib
import json
import sys
import time

import torch

import k3kernels as ours

D, LB, SCALE = 128, -5.0, 128 ** -0.5
PACKED = [13312, 8192, 4096, 3072, 2048, 1024, 512, 512]  # 8 sequences, 32,768 tokens
rows, _flush = [], None
options = None


def flush():
    global _flush
    if _flush is None:
        _flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    _flush.zero_()


def eager_us(run, count=15, seconds=1.0):
    run()
    torch.cuda.synchronize()
    begin = time.time()
    run()
    torch.cuda.synchronize()
    count = max(3, min(count, int(seconds / max(time.time() - begin, 1e-5))))
    times = []
    for _ in range(count):
        flush()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        run()
        b.record()
        times.append((a, b))
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in times)[len(times) // 2] * 1e3


def graph_us(run, **kw):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return eager_us(graph.replay, **kw)


def best_us(run, **kw):
    """The better of a graph's replay and an eager call, the eager call, the replay."""
    eager = eager_us(run, **kw)
    try:
        graph = graph_us(run, **kw)
        return min(eager, graph), eager, graph
    except Exception:  # cannot be captured
        torch.cuda.synchronize()
        return eager, eager, None


def importable(name):
    try:
        return importlib.import_module(name)
    except Exception as e:
        print(json.dumps({"peer": name, "absent": repr(e)[:160]}), flush=True)
        return None


def ratio(x, ref):
    x, ref = x.double().flatten(), ref.double().flatten()
    return float((x - ref).norm() / ref.norm())


def case(family, name, our_run, peers, our_scale=1.0, note=""):
    """peers: name -> (run, scale); a scale divides the time of a run that does several."""
    line = {"family": family, "case": name}
    if options.warm:
        for peer, (run, _) in peers.items():
            run()
        torch.cuda.synchronize()
        return
    us, eager, _ = best_us(our_run)
    line["ours_us"], line["ours_eager_us"] = round(us / our_scale, 2), round(eager / our_scale, 2)
    for peer, (run, scale) in peers.items():
        try:
            us, eager, _ = best_us(run)
            line[peer + "_us"], line["ours/" + peer] = round(us / scale, 2), round(line["ours_us"] / (us / scale), 3)
        except Exception as e:
            line[peer + "_error"] = repr(e)[:160]
    if note:
        line["note"] = note
    rows.append(line)
    print(json.dumps(line), flush=True)


def kda_inputs(tokens, heads, sequences, batch=1, seed=0, kind="normal"):
    gen = torch.Generator("cuda").manual_seed(seed)
    r = lambda *s: torch.randn(*s, generator=gen, device="cuda", dtype=torch.bfloat16)
    q, k, v, g = (r(batch, tokens, heads, D) for _ in range(4))
    if kind == "keep":
        g.fill_(-8)
    if kind == "alike":  # correlation 0.99 with a key that all tokens share
        k.mul_(0.1).add_(r(1, 1, heads, D))
    return q, k, v, g, r(batch, tokens, heads), torch.rand(heads, device="cuda"), torch.randn(heads, D, device="cuda"), torch.randn(sequences, heads, D, D, device="cuda") * 0.1


def copy_rate():
    """Bytes read and written per microsecond."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_(0, 255)
    b = torch.empty_like(a)
    return 2 * a.numel() / eager_us(lambda: b.copy_(a))


def prefill_peers(fla, flash, x, cu):
    q, k, v, g, beta, A, dt, S = x
    peers = {}
    if fla:
        @torch.inference_mode()
        def run_fla():
            return fla.chunk_kda(q, k, v, g, beta, scale=SCALE, initial_state=S, output_final_state=True, use_qk_l2norm_in_kernel=True,
                                 use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True, safe_gate=True, lower_bound=LB, state_v_first=True,
                                 cu_seqlens=cu, A_log=A, dt_bias=dt.reshape(-1))
        peers["fla"] = run_fla
    if flash:
        out, final = torch.empty_like(q), torch.empty_like(S)

        def run_flash():
            flash.fwd(q, k, v, g, beta, SCALE, out, A, dt, LB, initial_state=S, final_state=final, cu_seqlens=cu)
            return out, final
        peers["flash_kda"] = run_flash
    return peers


def prefill_case(fla, flash, heads, tokens, kind, rate):
    lens = [128] * 8 if options.warm and tokens == "packed" else PACKED if tokens == "packed" else [tokens]
    total = sum(lens)
    x = kda_inputs(total, heads, len(lens), kind=kind)
    q, k, v, g, beta, A, dt, S = x
    cu = torch.tensor([0] + torch.tensor(lens).cumsum(0).tolist(), device="cuda") if len(lens) > 1 else None
    peers = prefill_peers(fla, flash, x, cu)
    if options.warm:
        for run in peers.values():
            run()
        torch.cuda.synchronize()
        return
    mine = ours.KdaPrefillCall(q, k, v, g, beta, A, dt, S.clone(), LB, lens)
    mine.run()
    got = mine.out.clone()
    floor = (total * heads * (5 * 2 * D + 2) + 2 * S.numel() * 4) / rate
    us, eager, graph = best_us(mine.run, seconds=0.2)
    line = {"family": "kda prefill", "case": f"H={heads} T={tokens} {kind}", "floor_us": round(floor, 1), "ours_us": round(us, 1), "ours/floor": round(us / floor, 2),
            "ours_eager_us": round(eager, 1), "ours_graph_us": round(graph, 1)}
    for name, run in peers.items():
        try:
            line[name + "_differs"] = f"{ratio(got[:, -1024:], run()[0][:, -1024:]):.1e}"
            us, eager, graph = best_us(run, seconds=0.2)
            line[name + "_us"], line["ours/" + name] = round(us, 1), round(line["ours_us"] / us, 3)
            line[name + "_eager_us"], line["ours/" + name + " eager"] = round(eager, 1), round(line["ours_eager_us"] / eager, 3)
            if graph:
                line[name + "_graph_us"], line["ours/" + name + " graph"] = round(graph, 1), round(line["ours_graph_us"] / graph, 3)
        except Exception as e:
            line[name + "_error"] = repr(e)[:160]
    rows.append(line)
    print(json.dumps(line), flush=True)


def prefill(quick):
    fla, flash = importable("fla.ops.kda"), importable("flash_kda")
    rate = copy_rate()
    for heads in options.heads:
        sizes = (1024, 8192, 32768, 131072, "packed")
        for tokens in (1024, "packed") if options.warm else (8192,) if quick else sizes:  # FLA's kernels do not depend on the length
            for kind in ("normal",) if quick or options.warm else ("normal", "keep", "alike"):
                prefill_case(fla, flash, heads, tokens, kind, rate)
            torch.cuda.empty_cache()


def decode(quick):
    fla = importable("fla.ops.kda.fused_recurrent")
    for heads, batch in (((96, 32),) if quick else ((96, 1), (96, 32), (12, 1), (12, 256), (96, 128))):
        for dtype in (torch.float32, torch.bfloat16):
            size = batch * heads * D * D * (4 if dtype == torch.float32 else 2)
            states = [torch.randn(batch, heads, D, D, device="cuda").to(dtype) for _ in range(max(1, min(64, (512 << 20) // size)))]
            peers = {}
            if fla:
                q, k, v, g, beta, A, dt, _ = kda_inputs(1, heads, 1, batch)
                o = torch.empty_like(q)

                def run_fla():
                    for s in states:
                        fla.fused_recurrent_kda_fwd(q, k, v, g, beta, A_log=A, dt_bias=dt, initial_state=s, scale=SCALE, output_final_state=True,
                                                    inplace_final_state=True, state_v_first=True, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
                                                    use_beta_sigmoid_in_kernel=True, lower_bound=LB, out=o)
                peers["fla"] = (run_fla, len(states))
            case("kda decode", f"H={heads} B={batch} {str(dtype)[6:]}", ours.KdaDecodeLayer(batch, heads, states).run, peers, len(states),
                 "ours with convolution and output norm, fla without")


def attnres(quick):
    fla = importable("fla.ops.attnres.fused")
    width = 7168
    for tokens in ((8192,) if quick else (1, 8, 128, 8192)):
        bank = torch.randn(8, tokens, width, device="cuda").bfloat16()
        prefix = torch.randn(tokens, width, device="cuda").bfloat16()
        q, w, norm = (torch.randn(width, device="cuda") * 0.05).bfloat16(), (torch.rand(width, device="cuda") + 0.5).bfloat16(), (torch.rand(width, device="cuda") + 0.5).bfloat16()
        mine = ours.AttnResCall(bank, prefix, q.float() * w.float(), norm.float())
        peers, note = {}, ""
        if fla:
            sources = [bank[i] for i in range(8)] + [prefix]

            @torch.inference_mode()
            def run_fla():
                return fla.fused_attnres(q, sources, w, norm)
            peers["fla"] = (run_fla, 1)
            mine.run()
            got = run_fla()
            note = f"outputs differ by {ratio(mine.out, got[0] if isinstance(got, tuple) else got):.1e}"
        case("attnres", f"T={tokens} 9 sources", mine.run, peers, note=note)


def mla(quick):
    flash = importable("flash_mla")
    for heads, batch, length, each in (((96, 8, 32768, 1),) if quick else ((96, 1, 131072, 1), (96, 8, 32768, 1), (96, 128, 8192, 1), (12, 32, 32768, 1), (12, 8, 32768, 8))):
        pages = torch.randn(batch * length // 64, 64, 576, device="cuda", dtype=torch.bfloat16)
        table = torch.randperm(pages.shape[0], device="cuda").int().view(batch, -1)
        query = torch.randn(batch, each, heads, 576, device="cuda", dtype=torch.bfloat16)
        lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
        peers = {}
        if flash:
            meta, _ = flash.get_mla_metadata()
            peers["flash_mla"] = (lambda: flash.flash_mla_with_kvcache(query, pages.unsqueeze(2), table, lengths, 512, meta, softmax_scale=192 ** -0.5, causal=True), 1)
        case("mla decode", f"H={heads} B={batch} S={length} q={each}", ours.MlaDecodeCall(query, pages, table, lengths).run, peers)


def moe(quick):
    grouped = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    experts, width, inter, topk = 112, 3584, 3072, 16  # an eighth of K3's experts
    w13 = torch.empty(experts, 2 * inter, width, device="cuda", dtype=torch.bfloat16).normal_(0, 0.02)
    w2 = torch.empty(experts, width, inter, device="cuda", dtype=torch.bfloat16).normal_(0, 0.02)
    packed = ours.MoeCall(w13, w2, topk)
    for tokens in ((512,) if quick else (1, 16, 128, 512, 4096)):
        z = torch.randn(tokens, width, device="cuda").bfloat16()
        ids = torch.rand(tokens, experts, device="cuda").topk(topk, 1).indices
        gates = torch.rand(tokens, topk, device="cuda")
        flat = ids.flatten()
        counts = torch.bincount(flat, minlength=experts)
        offsets = counts.cumsum(0).int()
        x, h = z[flat.argsort(stable=True) // topk].contiguous(), torch.randn(tokens * topk, inter, device="cuda").bfloat16()
        out, run = packed.tokens(z, ids.int(), gates)
        run()
        want = torch.zeros(width, device="cuda", dtype=torch.float64)
        for j in range(topk):  # the last token, in double
            e = int(ids[-1, j])
            p = w13[e].double() @ z[-1].double()
            a, b = p[:inter], p[inter:]
            want += gates[-1, j].double() * (w2[e].double() @ (4 * torch.tanh(a / 4) * torch.sigmoid(a) * 25 * torch.tanh(b / 25)).bfloat16().double())
        peers = {}
        if grouped:
            peers["grouped_mm"] = (lambda: (grouped(x, w13.transpose(1, 2), offs=offsets), grouped(h, w2.transpose(1, 2), offs=offsets)), 1)
        case("experts bf16", f"T={tokens} of {experts}", run, peers, note=f"ours whole (gather, SiTU, sum), peer GEMMs alone; error {ratio(out[-1], want):.1e}")


def cut_autotuning(args):
    """Fewer configurations a kernel, a part of them in each of several warming processes, and short measurements."""
    import triton
    from triton.runtime.autotuner import Autotuner
    part, parts = (int(n) for n in args.shard.split("/"))
    init = Autotuner.__init__

    def thinned(self, fn, names, configs, *a, **kw):
        if args.fla_configs and configs:
            configs = configs[:: max(1, -(-len(configs) // args.fla_configs))]
        if parts > 1 and configs:
            configs = configs[part::parts] or [configs[part % len(configs)]]
        init(self, fn, names, configs, *a, **kw)
    Autotuner.__init__ = thinned
    triton.testing.do_bench = functools.partial(triton.testing.do_bench, warmup=5, rep=20)


def print_table():
    peers = ("fla", "flash_kda", "flash_mla", "grouped_mm")
    print(f"\n{'family':<14}{'case':<30}{'ours us':>10}{'/floor':>8}" + "".join(f"{p + ' us':>16}{'ours/it':>9}" for p in peers))
    for r in rows:
        cells = "".join(f"{r.get(p + '_us', '-'):>16}{r.get('ours/' + p, '-'):>9}" for p in peers)
        print(f"{r['family']:<14}{r['case']:<30}{r['ours_us']:>10}{r.get('ours/floor', '-'):>8}{cells}")
    for peer in ("fla", "flash_kda"):
        for mode in ("eager", "graph"):
            found = [(r[f"ours/{peer} {mode}"], r["case"]) for r in rows if f"ours/{peer} {mode}" in r]
            if found:
                print(f"kda prefill, {mode}, ours / {peer}: {min(found)[0]} to {max(found)[0]} (worst: {max(found)[1]}), {len(found)} cases")


FAMILIES = {"prefill": prefill, "decode": decode, "attnres": attnres, "mla": mla, "moe": moe}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--quick", action="store_true", help="one case a family")
    parser.add_argument("--warm", action="store_true", help="run the peers once, time nothing")
    parser.add_argument("--heads", default=[96, 12], type=lambda text: [int(n) for n in text.split(",")], help="of prefill")
    parser.add_argument("--shard", default="0/1", help="with --warm: this process's part of the configurations")
    parser.add_argument("--fla-configs", type=int, default=0, help="most configurations a kernel of FLA is tuned over (0: all)")
    global options
    args = options = parser.parse_args()
    cut_autotuning(args)
    for name in args.families.split(","):
        try:
            FAMILIES[name](args.quick)
        except Exception as e:
            print(json.dumps({"family": name, "error": repr(e)[:300]}), flush=True)
        torch.cuda.empty_cache()
    print_table()
    return 0 if rows or args.warm else 1


if __name__ == "__main__":
    sys.exit(main())
