"""Fifty training steps in float64 by PyTorch, to hold our own against: losses and gradient norms of every step.
Independent of the project: k3_torch.py gives the model and its gradients; the optimizer is written out below from training.md.
The model is k3-f's config with four layers, and with an epsilon and a scale that FP32 holds exactly (ours travel as such):
  k3 init tests/data/oracle-models/k3-f DIR --seed 5 --set num_hidden_layers=4 rms_norm_eps=7.62939453125e-06 routed_scaling_factor=1.75
  tools/oracle/train_golden.py DIR > tests/data/train-golden.json
With AdamW for all, rates are a tenth and the router's bias stays: larger steps, or the edges of the histogram (with so few tokens a margin
often lies exactly on one), would make FP32 and FP64 part ways for no fault of either."""
import json, math, os, sys

import numpy as np
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import golden

STEPS, ROWS, LENGTH = 50, 2, 24
MATRIX, VECTOR, TABLE = 0.006, 0.002, 0.003  # rates; the cosine ends at 2 %, the first step is the warm-up
MINIMUM, DECAY, CLIP, TAU = 0.02, 0.1, 1.0, 0.05  # tau far below the usual 100, so that the clip of attention acts


def tokens(step, vocab):
    """[ROWS, LENGTH + 1] ids from a linear congruential generator."""
    x, out, mask = 1000003 * (step + 1), [], (1 << 64) - 1
    for _ in range(ROWS * (LENGTH + 1)):
        x = (x * 6364136223846793005 + 1442695040888963407) & mask
        out.append((x >> 33) % vocab)
    return torch.tensor(out).view(ROWS, LENGTH + 1)


def rate(step):
    if step < 1:
        return 1.0
    return MINIMUM + 0.5 * (1 - MINIMUM) * (1 + math.cos(math.pi * (step - 1) / (STEPS - 1)))


def newton_schulz(x):
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.mT if tall else x


def group(name, p, cfg):
    """(kind, rows of each unit or None, decays)"""
    last = name.rsplit('.', 2)
    leaf = last[-2] if last[-1] == 'weight' else last[-1]
    if leaf in ('embed_tokens', 'lm_head'):
        return 'table', None, True
    if p.dim() == 3 and leaf in ('w1', 'w2', 'w3'):
        return 'muon', None, True
    if leaf in ('q_proj', 'k_proj', 'v_proj', 'f_b_proj') or (leaf == 'g_proj' and p.shape[0] == cfg.kda_heads * cfg.kda_head_dim and 'kda' in KIND[name]):
        return 'muon', [cfg.kda_head_dim] * cfg.kda_heads, True
    if leaf == 'g_proj':
        return 'muon', [cfg.v_dim] * cfg.heads, True
    if leaf == 'q_b_proj':
        return 'muon', [cfg.nope + cfg.rope] * cfg.heads, True
    if leaf == 'kv_b_proj':
        return 'muon', [cfg.nope, cfg.v_dim] * cfg.heads, True
    if leaf in ('f_a_proj', 'o_proj', 'q_a_proj', 'kv_a_proj_with_mqa', 'gate_proj', 'up_proj', 'down_proj', 'gate', 'routed_expert_down_proj',
                'routed_expert_up_proj'):
        return 'muon', [p.shape[0]], True
    return 'vector', None, leaf == 'b_proj'


class Optimizer:
    def __init__(self, model, cfg, adamw):
        self.rows, self.cfg = [], cfg
        for n, p in model.named_parameters():
            kind, units, decays = group(n, p, cfg)
            if adamw and kind == 'muon':
                kind = 'vector'
            self.rows.append((n, p, kind, units, DECAY if decays else 0.0, torch.zeros_like(p), torch.zeros_like(p)))

    @torch.no_grad()
    def step(self, step, lr):
        for _, p, *_ in self.rows:
            if p.grad is None:  # the first site of all has one source, so its query is not used
                p.grad = torch.zeros_like(p)
        norm = math.sqrt(sum(float((p.grad ** 2).sum()) for _, p, *_ in self.rows))
        scale = min(1.0, CLIP / (norm + 1e-6))
        for _, p, kind, units, decay, first, second in self.rows:
            g = p.grad * scale
            if kind == 'muon':
                first.mul_(0.95).add_(g)
                u = g + 0.95 * first
                parts = [u] if units is None else u.split(units, 0)
                o = torch.cat([newton_schulz(x) * 0.2 * math.sqrt(max(x.shape[-2:])) for x in parts])
                p.mul_(1 - lr * MATRIX * decay).sub_(lr * MATRIX * o)
                continue
            eta = lr * (TABLE if kind == 'table' else VECTOR)
            first.add_(0.1 * (g - first))
            second.mul_(0.95).add_(0.05 * g * g)
            m, v = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.95 ** (step + 1))
            p.mul_(1 - eta * decay).sub_(eta * m / (v.sqrt() + 1e-8))
        for _, p, *_ in self.rows:
            p.grad = None
        return norm


def watch_attention(model, cfg):
    """Largest scaled logit of each head, by what the projections give."""
    seen = {}

    def attach(m):
        m.q_b_proj.register_forward_hook(lambda _, __, y: seen.__setitem__((m, 'q'), y))
        m.kv_a_proj_with_mqa.register_forward_hook(lambda _, __, y: seen.__setitem__((m, 'a'), y))
        m.kv_b_proj.register_forward_hook(lambda _, __, y: seen.__setitem__((m, 'b'), y))
    layers = [l.self_attn for l in model.layers if hasattr(l.self_attn, 'kv_b_proj')]
    for m in layers:
        attach(m)

    def largest(m):
        q = seen[m, 'q'].view(ROWS, LENGTH, cfg.heads, -1)
        nope = seen[m, 'b'].view(ROWS, LENGTH, cfg.heads, -1)[..., :cfg.nope]
        shared = seen[m, 'a'][..., cfg.kv_lora_rank:][:, :, None].expand(-1, -1, cfg.heads, -1)
        s = torch.einsum('bihd,bjhd->bhij', q, torch.cat([nope, shared], -1)) * (cfg.nope + cfg.rope) ** -0.5
        return s.masked_fill(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), -math.inf).amax((0, 2, 3)).detach()
    return layers, largest


@torch.no_grad()
def clip_attention(m, largest, cfg):
    gamma = torch.where(largest > TAU, TAU / largest.clamp_min(1e-300), torch.ones_like(largest))
    q = m.q_b_proj.weight.view(cfg.heads, cfg.nope + cfg.rope, -1)
    kv = m.kv_b_proj.weight.view(cfg.heads, cfg.nope + cfg.v_dim, -1)
    root = gamma.sqrt()[:, None, None]
    q[:, :cfg.nope] *= root
    q[:, cfg.nope:] *= gamma[:, None, None]
    kv[:, :cfg.nope] *= root


@torch.no_grad()
def balance(moe, cfg):
    """Quantile balancing by histogram, training.md 4.3."""
    b, s, bins = moe.gate.e_score_correction_bias.double(), moe.scores, 1000
    alpha = torch.topk(s + b, cfg.topk + 1, -1).values[:, -1:]
    low = float(b.min()) - 1
    width = (float(b.max()) - float(b.min()) + 2) / bins
    index = torch.floor((alpha - s - low) * (1 / width)).long().clamp(0, bins - 1)
    wanted, new = s.shape[0] * cfg.topk / cfg.experts, []
    for j in range(cfg.experts):
        h = torch.bincount(index[:, j], minlength=bins)
        total = torch.cumsum(h, 0)
        l = int(torch.searchsorted(total, math.ceil(wanted)))
        before = int(total[l] - h[l])
        new.append(low + (l + min(max((wanted - before) / int(h[l]), 0.0), 1.0)) * width)
    new = torch.tensor(new, dtype=torch.float64)
    moe.gate.e_score_correction_bias.copy_(new - new.mean())


def run(folder, adamw):
    model, cfg = golden.load(folder, torch.float64)
    cfg.rms_norm_eps = json.load(open(f'{folder}/config.json'))['text_config']['rms_norm_eps']
    model.train()
    for n, m in model.named_modules():
        for q, _ in m.named_parameters(recurse=False):
            KIND[(n + '.' if n else '') + q] = ''
    for i, layer in enumerate(model.layers):
        for q, _ in layer.self_attn.named_parameters():
            KIND[f'layers.{i}.self_attn.{q}'] = 'kda' if hasattr(layer.self_attn, 'A_log') else 'mla'
    optimizer = Optimizer(model, cfg, adamw)
    layers, largest = watch_attention(model, cfg)
    losses, norms = [], []
    for step in range(STEPS):
        ids = tokens(step, cfg.vocab_size)
        logits = model(ids[:, :-1], exact=True, dtype=torch.float64)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        most = [largest(m) for m in layers]
        norms.append(optimizer.step(step, rate(step) * (0.1 if adamw else 1.0)))
        for m, l in zip(layers, most):
            clip_attention(m, l, cfg)
        for layer in model.layers:
            if hasattr(layer, 'block_sparse_moe') and not adamw:
                balance(layer.block_sparse_moe, cfg)
        losses.append(float(loss.detach()))
    return losses, norms


KIND = {}
torch.set_num_threads(8)
out = {'steps': STEPS, 'rows': ROWS, 'length': LENGTH, 'matrix_rate': MATRIX, 'vector_rate': VECTOR, 'embedding_rate': TABLE, 'minimum_rate': MINIMUM,
       'weight_decay': DECAY, 'clip': CLIP, 'qk_clip': TAU}
out['muon_losses'], out['muon_norms'] = run(sys.argv[1], False)
out['adamw_losses'], out['adamw_norms'] = run(sys.argv[1], True)
print(json.dumps(out, indent=1))
