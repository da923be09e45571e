"""libk3kernels.so (src/k3/ops/cuda/k3_kernels.h) for PyTorch tensors. K3_KERNELS names the library; without it: build/*/libk3kernels.so.

kda_prefill and kda_decode take what the benches of other people's kernels pass: q, k, v, g [B, T, H, 128] bf16, beta [B, T, H] bf16, A [H],
dt [H, 128], S [N, H, 128 values, 128 keys]. kda_decode is the recurrence alone (by the prefill kernels); KdaDecodeLayer is the kernel that the
program decodes with: convolution, SiLU, norms, gate, recurrence and output norm.
"""
import ctypes as C
import glob
import os

import torch

P, I32, I64, F = C.c_void_p, C.c_int32, C.c_int64, C.c_float


def _struct(name, fields):
    return type(name, (C.Structure,), {"_fields_": fields})


KdaPrefill = _struct("K3KdaPrefill", [(n, I64) for n in ("tokens", "heads", "sequences", "longest")] + [(n, P) for n in "qkvz"] +
                     [(n + "_stride", I64) for n in "qkvz"] + [("b", P), ("b_stride", I64), ("b_f32", I32), ("bounded", I32), ("lower_bound", F),
                      ("state_bf16", I32), ("a_log", P), ("dt_bias", P), ("offsets", P), ("states", P), ("slot_stride", I64), ("start", P), ("to", P),
                      ("exports", P), ("export_count", I64), ("out", P), ("out_stride", I64), ("workspace", P), ("pairs", I32), ("segment", I64),
                      ("export_every", I32)])
KdaWeights = _struct("KdaWeights", [("taps", P * 3), ("a_log", P), ("dt_bias", P), ("norm", P), ("lower_bound", F), ("norm_eps", F), ("heads", I32)])
KdaRows = _struct("KdaRows", [("x", P * 3), ("x_stride", I64 * 3)] + sum([[(n, P), (n + "_stride", I64)] for n in ("z", "gate", "beta", "out")], []))
KdaSlots = _struct("KdaSlots", [("state", P), ("state_stride", I64), ("conv", P), ("conv_stride", I64), ("slots", P), ("state_bf16", I32), ("conv_bf16", I32)])
KdaLaunch = _struct("KdaLaunch", [("dependent", I32), ("early_state", I32), ("form", I32)])
KdaLowRank = _struct("KdaLowRank", sum([[(n + "_w", P), (n + "_in", P), (n + "_stride", I64)] for n in ("z", "gate")], []))
KdaDecode = _struct("KdaDecodeArgs", [("weights", KdaWeights), ("rows", KdaRows), ("slots", KdaSlots), ("launch", KdaLaunch), ("batch", I32), ("low", KdaLowRank), ("out_rest", P)])
MlaDecode = _struct("K3MlaDecode", [("query", P), ("tokens", I64), ("heads", I64), ("batch", I64), ("query_tokens_each", I64), ("lengths", P),
                                    ("offsets", P), ("pages", P), ("page_tokens", I64), ("page_stride", I64), ("row_stride", I64), ("page_count", I64),
                                    ("table", P), ("table_stride", I64), ("out", P), ("lse", P), ("workspace", P)])
AttnRes = _struct("K3AttnRes", [("tokens", I64), ("hidden", I64), ("blocks", I64), ("bank", P), ("prefix", P), ("delta", P), ("prefix_out", P),
                                ("query", P), ("norm", P), ("eps", F), ("out", P)])
Experts = _struct("K3Experts", [("mxfp4", I32), ("experts", I32), ("width", I32), ("intermediate", I32), ("w13", P), ("w2", P), ("factors", P)])
Moe = _struct("K3Moe", [("weights", Experts), ("situ", I32), ("beta", F), ("linear_beta", F), ("tokens", I32), ("topk", I32), ("first_expert", I32),
                        ("z", P), ("ids", P), ("gates", P), ("out", P), ("workspace", P)])


def _load():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    found = [os.environ["K3_KERNELS"]] if os.environ.get("K3_KERNELS") else sorted(glob.glob(os.path.join(here, "build", "*", "libk3kernels.so")))
    if not found:
        raise ImportError("no libk3kernels.so: cmake --build --preset dev --target k3kernels, or K3_KERNELS=PATH")
    lib = C.CDLL(found[0])
    for name in ("k3_kda_prefill_workspace", "k3_mla_decode_workspace", "k3_experts_packed_bytes", "k3_moe_workspace"):
        getattr(lib, name).restype = I64
    if lib.k3_kernels_version() != 3:
        raise ImportError(f"{found[0]} has other structs (version {lib.k3_kernels_version()})")
    return lib


lib = _load()


def stream():
    return P(torch.cuda.current_stream().cuda_stream)


def call(function, args):
    code = function(C.byref(args), stream())
    if code != 0:
        raise RuntimeError(f"{function.__name__}: cudaError {code}")


def _i32(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


_kept = {}  # what the last call prepared (arrays, workspace): made in the first call of a shape, so that later ones can be captured


def _keep(key, make):
    if key not in _kept:
        _kept.clear()
        _kept[key] = make()
    return _kept[key]


class KdaPrefillCall:
    """A prefill with everything prepared; run() launches. S is replaced by the final state when final is None."""

    def __init__(self, q, k, v, g, beta, A, dt, S, lb, lens=None, out=None):
        tokens, heads = q.shape[0] * q.shape[1], q.shape[2]
        lens = lens or [q.shape[1]] * q.shape[0]
        offsets = [0]
        for n in lens:
            offsets.append(offsets[-1] + n)
        self.offsets, self.slots = _i32(offsets), _i32(list(range(len(lens))))
        self.out = torch.empty_like(q) if out is None else out
        lib.k3_kda_prefill_workspace.argtypes = [I64] * 4
        self.workspace = torch.empty(lib.k3_kda_prefill_workspace(tokens, heads, len(lens), max(lens)) + 256, dtype=torch.uint8, device="cuda")
        self.keep = (q, k, v, g, beta, A, dt, S)
        row = heads * 128
        self.args = KdaPrefill(tokens, heads, len(lens), max(lens), q.data_ptr(), k.data_ptr(), v.data_ptr(), g.data_ptr(), row, row, row, row,
                               beta.data_ptr(), heads, 0, 1, lb, int(S.dtype == torch.bfloat16), A.data_ptr(), dt.data_ptr(), self.offsets.data_ptr(),
                               S.data_ptr(), row * 128, self.slots.data_ptr(), self.slots.data_ptr(), None, 0, self.out.data_ptr(), row,
                               self.workspace.data_ptr(), 0, 0)

    def run(self):
        call(lib.k3_kda_prefill, self.args)


def kda_prefill(q, k, v, g, beta, A, dt, S, scale, lb, cu=None, out=None, S1=None):
    """Initial states S, final ones to S1 (a copy of S comes first and is part of the time)."""
    assert abs(scale - 128 ** -0.5) < 1e-6
    final = torch.empty_like(S) if S1 is None else S1
    final.copy_(S)

    def make():
        lens = None if cu is None else [b - a for a, b in zip(cu.tolist(), cu.tolist()[1:])]
        return KdaPrefillCall(q, k, v, g, beta, A, dt, final, lb, lens, out)

    prepared = _keep(("prefill", q.data_ptr(), final.data_ptr(), q.shape, None if out is None else out.data_ptr()), make)
    prepared.run()
    return prepared.out, final


def kda_decode(q, k, v, g, beta, A, dt, S, scale, lb, out):
    """One token of each request; S in place."""
    _keep(("decode", q.data_ptr(), S.data_ptr()), lambda: KdaPrefillCall(q, k, v, g, beta, A, dt, S, lb, out=out)).run()


class KdaDecodeLayer:
    """The fused decode step over `states` (a list: one call each), inputs random."""

    def __init__(self, batch, heads, states, lb=-5.0):
        row = heads * 128
        rows = lambda: torch.randn(batch, row, device="cuda").bfloat16()
        self.x, self.z, self.gate, self.beta, self.out = [rows() for _ in range(3)], rows(), rows(), torch.randn(batch, heads, device="cuda").bfloat16(), rows()
        self.taps = [torch.randn(row, 4, device="cuda") * 0.5 for _ in range(3)]
        self.a_log, self.dt, self.norm = torch.rand(heads, device="cuda"), torch.randn(row, device="cuda"), torch.ones(128, device="cuda")
        self.slots, self.states = _i32(list(range(batch))), states
        self.conv = [torch.randn(batch, 9 * row, device="cuda").bfloat16() for _ in states]
        weights = KdaWeights((P * 3)(*[t.data_ptr() for t in self.taps]), self.a_log.data_ptr(), self.dt.data_ptr(), self.norm.data_ptr(), lb, 1e-5, heads)
        r = KdaRows((P * 3)(*[t.data_ptr() for t in self.x]), (I64 * 3)(row, row, row), self.z.data_ptr(), row, self.gate.data_ptr(), row,
                    self.beta.data_ptr(), heads, self.out.data_ptr(), row)
        self.args = [KdaDecode(weights, r, KdaSlots(s.data_ptr(), row * 128, c.data_ptr(), 9 * row, self.slots.data_ptr(),
                                                    int(s.dtype == torch.bfloat16), 1), KdaLaunch(0, 0, 0), batch) for s, c in zip(states, self.conv)]

    def run(self):
        for a in self.args:
            call(lib.k3_kda_decode, a)


class MlaDecodeCall:
    """query [B, sq, H, 576], pages [n, 64, 576], table [B, pages], lengths [B]."""

    def __init__(self, query, pages, table, lengths):
        batch, each, heads, _ = query.shape
        self.out = torch.empty(batch, each, heads, 512, device="cuda", dtype=torch.bfloat16)
        lib.k3_mla_decode_workspace.argtypes = [I64] * 2
        self.workspace = torch.empty(lib.k3_mla_decode_workspace(heads, each), dtype=torch.uint8, device="cuda")
        self.keep = (query, pages, table, lengths)
        page = pages.shape[1]
        self.args = MlaDecode(query.data_ptr(), batch * each, heads, batch, each, lengths.data_ptr(), None, pages.data_ptr(), page, page * 576, 576,
                              pages.shape[0], table.data_ptr(), table.shape[1], self.out.data_ptr(), None, self.workspace.data_ptr())

    def run(self):
        call(lib.k3_mla_decode, self.args)


class AttnResCall:
    """bank [n, T, D], prefix [T, D], query [D] f32, norm [D] f32."""

    def __init__(self, bank, prefix, query, norm, eps=1e-5):
        self.out = torch.empty_like(prefix)
        self.keep = (bank, prefix, query, norm)
        self.args = AttnRes(prefix.shape[0], prefix.shape[1], bank.shape[0], bank.data_ptr(), prefix.data_ptr(), None, None, query.data_ptr(),
                            norm.data_ptr(), eps, self.out.data_ptr())

    def run(self):
        call(lib.k3_attn_res, self.args)


class MoeCall:
    """Experts w13 [E, 2 F, R] (gate rows, then up), w2 [E, R, F] bf16, packed here; SiTU with 4 and 25."""

    def __init__(self, w13, w2, topk):
        lib.k3_experts_packed_bytes.argtypes = [I32, I64, I64]
        experts, width, inter = w13.shape[0], w13.shape[2], w13.shape[1] // 2
        size = [lib.k3_experts_packed_bytes(0, 2 * inter, width), lib.k3_experts_packed_bytes(0, width, inter)]
        self.packed = [torch.empty(experts * n, dtype=torch.uint8, device="cuda") for n in size]
        self.weights = Experts(0, experts, width, inter, self.packed[0].data_ptr(), self.packed[1].data_ptr(), None)
        self.topk = topk
        for e in range(experts):
            code = lib.k3_experts_pack(C.byref(self.weights), e, P(w13[e].data_ptr()), P(w2[e].data_ptr()), P(w13[e, inter:].data_ptr()), None, None, None, stream())
            if code != 0:
                raise RuntimeError(f"k3_experts_pack: cudaError {code}")

    def tokens(self, z, ids, gates):
        args = Moe(self.weights, 1, 4.0, 25.0, z.shape[0], self.topk, 0, z.data_ptr(), ids.data_ptr(), gates.data_ptr())
        out, workspace = torch.empty_like(z), torch.zeros(lib.k3_moe_workspace(C.byref(args)), dtype=torch.uint8, device="cuda")
        args.out, args.workspace = out.data_ptr(), workspace.data_ptr()
        keep = (z, ids, gates, workspace)
        return out, lambda: (call(lib.k3_moe, args), keep)
