"""The seedling's architecture in plain PyTorch, for training: Qwen3.5 MoE, text only.

Differences from a model that only serves:
- Rows are packed with several documents. Nothing crosses a border between two of them: the
  attention mask is block-diagonal, the convolution does not look over the border, and the
  DeltaNet state is decayed to nothing there.
- DeltaNet runs in its chunked form (Gated Delta Networks, arXiv 2412.06464, section 3.3): inside a
  chunk of 64 tokens a triangular system is solved, between chunks the float32 state is carried.
- All experts are computed and masked by the routing weights, faster at this size than a gather.

Elementwise work is in plain functions, `fast` may hold compiled ones (train.py).
Parameter names and shapes are those of an unconverted checkpoint, without the `model.` prefix.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

CHUNK = 64
L2_EPS = 1e-6
# Log decay at the first token of a document: exp(-60) leaves nothing of the state before it.
BORDER_DECAY = -60.0
MASKED = -3e4


class Context:
    """What all layers of one forward pass share, made from the document numbers of the rows."""

    def __init__(self, documents, shape, dtype, functions):
        # documents: [rows, tokens] int, a new number at every border
        length = documents.shape[1]
        self.dtype, self.functions = dtype, functions
        self.real = (documents > 0).float().flatten()
        self.first = torch.ones_like(documents, dtype=torch.bool)
        self.first[:, 1:] = documents[:, 1:] != documents[:, :-1]
        # reach[j]: does the token j places back belong to the same document
        self.reach = []
        for back in range(1, shape["linear_conv_kernel_dim"]):
            same = torch.zeros_like(self.first)
            same[:, back:] = documents[:, back:] == documents[:, :-back]
            self.reach.append(same.unsqueeze(-1).to(dtype))
        place = torch.arange(length, device=documents.device)
        seen = (documents[:, :, None] == documents[:, None, :]) & (place[:, None] >= place)
        self.mask = torch.where(seen, 0.0, MASKED).to(dtype).unsqueeze(1)  # [rows, 1, t, t]
        rope = shape["rope_parameters"]
        turned = int(shape["head_dim"] * rope["partial_rotary_factor"])
        steps = torch.arange(0, turned, 2, device=documents.device, dtype=torch.float32)
        angle = place[:, None].float() * rope["rope_theta"] ** (-steps / turned)
        self.cos, self.sin = angle.cos(), angle.sin()  # [tokens, turned / 2] f32


class Seedling(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = Weight(shape["vocab_size"], shape["hidden_size"])
        self.layers = nn.ModuleList(Layer(shape, i) for i in range(shape["num_hidden_layers"]))
        self.norm = Norm(shape["hidden_size"], shape["rms_norm_eps"])
        self.lm_head = Weight(shape["vocab_size"], shape["hidden_size"])
        self.reset()

    def reset(self):
        """Fresh weights. What writes to the residual stream starts small, decays start slow."""
        depth = 2 * self.shape["num_hidden_layers"]
        for name, value in self.named_parameters():
            if name.endswith("A_log"):
                value.data.uniform_(1.0, 16.0).log_()
            elif name.endswith("dt_bias"):
                step = torch.exp(torch.empty_like(value).uniform_(math.log(1e-3), math.log(0.1)))
                value.data.copy_(step + torch.log(-torch.expm1(-step)))
            elif name.endswith("linear_attn.norm.weight"):
                nn.init.ones_(value)
            elif value.dim() == 1:
                nn.init.zeros_(value)
            elif name.endswith("conv1d.weight"):
                nn.init.uniform_(value, -0.5, 0.5)
            else:
                writes = any(part in name for part in ("out_proj", "o_proj", "down_proj"))
                nn.init.normal_(value, std=0.03 / math.sqrt(depth) if writes else 0.03)

    def forward(self, tokens, documents, dtype=torch.bfloat16, fast=None):
        """tokens, documents: [rows, tokens] int64, the length a multiple of 64; padding has
        document 0. Returns float32 logits [rows, tokens, vocabulary], the balance loss of the routers
        (1 when even) and the share of tokens that chose each expert [layers, experts]."""
        context = Context(documents, self.shape, dtype, fast or Functions())
        x = F.embedding(tokens, self.embed_tokens.weight).float()
        balance, chosen = [], []
        for layer in self.layers:
            x, even, share = layer(x, context)
            balance.append(even)
            chosen.append(share)
        logits = self.lm_head(self.norm(x).to(dtype)).float()
        return logits, torch.stack(balance).mean(), torch.stack(chosen)


class Layer(nn.Module):
    def __init__(self, shape, index):
        super().__init__()
        width, eps = shape["hidden_size"], shape["rms_norm_eps"]
        self.input_layernorm = Norm(width, eps)
        self.post_attention_layernorm = Norm(width, eps)
        if shape["layer_types"][index] == "linear_attention":
            self.linear_attn = DeltaNet(shape)
        else:
            self.self_attn = Attention(shape)
        self.mlp = Experts(shape)

    def forward(self, x, context):
        mixer = self.linear_attn if hasattr(self, "linear_attn") else self.self_attn
        x = x + mixer(self.input_layernorm(x).to(context.dtype), context)
        n = self.post_attention_layernorm(x)
        y, balance, shares = self.mlp(n.flatten(0, 1), context)
        return x + y.view_as(x), balance, shares


class DeltaNet(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.sizes = (shape["linear_num_key_heads"], shape["linear_num_value_heads"],
                      shape["linear_key_head_dim"], shape["linear_value_head_dim"])
        width = shape["hidden_size"]
        key_heads, value_heads, key_dim, value_dim = self.sizes
        keys, values = key_heads * key_dim, value_heads * value_dim
        self.in_proj_qkv = Weight(2 * keys + values, width)
        self.in_proj_z = Weight(values, width)
        self.in_proj_b = Weight(value_heads, width)
        self.in_proj_a = Weight(value_heads, width)
        self.conv1d = nn.Module()
        self.conv1d.weight = nn.Parameter(
            torch.empty(2 * keys + values, 1, shape["linear_conv_kernel_dim"])
        )
        self.A_log = nn.Parameter(torch.empty(value_heads))
        self.dt_bias = nn.Parameter(torch.empty(value_heads))
        self.norm = Norm(value_dim, shape["rms_norm_eps"], centre=0.0)
        self.out_proj = Weight(width, values)

    def forward(self, n, context):
        write = self.in_proj_b(n).float().sigmoid()
        step = F.softplus(self.in_proj_a(n).float() + self.dt_bias.float())
        decay = -self.A_log.float().exp() * step  # log of g, [rows, tokens, value heads]
        decay = torch.where(context.first.unsqueeze(-1), BORDER_DECAY, decay)
        mixed = context.functions.convolved(self.in_proj_qkv(n), self.conv1d.weight, context.reach)
        parts = context.functions.chunked(mixed, write, decay, self.sizes)
        o = walked(*parts)
        gated = context.functions.gated(o, self.in_proj_z(n), self.norm.weight, self.norm.eps)
        return self.out_proj(gated)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.count, self.groups = shape["num_attention_heads"], shape["num_key_value_heads"]
        self.dim = shape["head_dim"]
        width, eps = shape["hidden_size"], shape["rms_norm_eps"]
        self.q_proj = Weight(2 * self.count * self.dim, width)
        self.k_proj = Weight(self.groups * self.dim, width)
        self.v_proj = Weight(self.groups * self.dim, width)
        self.o_proj = Weight(width, self.count * self.dim)
        self.q_norm, self.k_norm = Norm(self.dim, eps), Norm(self.dim, eps)

    def forward(self, n, context):
        rows, length, _ = n.shape
        both = self.q_proj(n).view(rows, length, self.count, 2, self.dim)
        q, gate = both.unbind(3)
        k = self.k_proj(n).view(rows, length, self.groups, self.dim)
        v = self.v_proj(n).view(rows, length, self.groups, self.dim)
        q = turned(self.q_norm(q), context).to(n.dtype).transpose(1, 2)
        k = turned(self.k_norm(k), context).to(n.dtype).transpose(1, 2)
        shared = self.count // self.groups
        k = k.repeat_interleave(shared, dim=1)
        v = v.transpose(1, 2).repeat_interleave(shared, dim=1)
        mask = context.mask.expand(-1, self.count, -1, -1)
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.transpose(1, 2) * gate.float().sigmoid()
        return self.o_proj(out.flatten(2).to(n.dtype))


class Experts(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, inner = shape["hidden_size"], shape["moe_intermediate_size"]
        count, shared = shape["num_experts"], shape["shared_expert_intermediate_size"]
        self.top = shape["num_experts_per_tok"]
        self.gate = Weight(count, width)
        self.experts = nn.Module()
        self.experts.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, width))
        self.experts.down_proj = nn.Parameter(torch.empty(count, width, inner))
        self.shared_expert = nn.Module()
        self.shared_expert.gate_proj = Weight(shared, width)
        self.shared_expert.up_proj = Weight(shared, width)
        self.shared_expert.down_proj = Weight(width, shared)
        self.shared_expert_gate = Weight(1, width)

    def forward(self, n, context):
        """n: [tokens, hidden] f32. Returns the same shape, the balance loss, each expert's share."""
        shared = self.shared_expert
        return context.functions.mixture(
            n, context.real, context.dtype, self.top, self.gate.weight, self.experts.gate_up_proj,
            self.experts.down_proj, shared.gate_proj.weight, shared.up_proj.weight,
            shared.down_proj.weight, self.shared_expert_gate.weight,
        )


class Weight(nn.Module):
    """A matrix [out, in]."""

    def __init__(self, out, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, width))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    """RMSNorm in float32; gain = centre + weight."""

    def __init__(self, width, eps, centre=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps, self.centre = eps, centre

    def forward(self, x):
        return normed(x, self.centre + self.weight, self.eps)


def normed(x, gain, eps):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


def convolved(qkv, weight, reach):
    """Causal depthwise convolution of qkv [rows, tokens, channels], SiLU behind it."""
    length = qkv.shape[1]
    taps = weight[:, 0].to(qkv.dtype)
    mixed = qkv * taps[:, -1]
    for back, same in enumerate(reach, start=1):
        mixed = mixed + F.pad(qkv, (0, 0, back, 0))[:, :length] * same * taps[:, -1 - back]
    return F.silu(mixed)


def chunked(mixed, write, decay, sizes):
    """Everything inside the chunks of 64 that the walk over them needs, float32."""
    key_heads, value_heads, key_dim, value_dim = sizes
    keys, values = key_heads * key_dim, value_heads * value_dim
    shared = value_heads // key_heads
    q, k, v = mixed.float().split([keys, keys, values], dim=-1)
    q = unit(in_chunks(q, key_heads)) * key_dim**-0.5
    k = unit(in_chunks(k, key_heads))
    v = in_chunks(v, value_heads)
    write = in_chunks(write, value_heads)  # [rows, value heads, chunks, 64, 1]
    total = in_chunks(decay, value_heads).squeeze(-1).cumsum(-1)

    # [rows, value heads, chunks, 64, 64]: how much of token j is left at token i
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=mixed.device).tril()
    left = torch.where(lower, total.unsqueeze(-1) - total.unsqueeze(-2), MASKED).exp()
    overlap = (k @ k.mT).repeat_interleave(shared, dim=1)
    attend = (q @ k.mT).repeat_interleave(shared, dim=1) * left
    q, k = q.repeat_interleave(shared, dim=1), k.repeat_interleave(shared, dim=1)
    system = (overlap * left * write).tril(-1)
    grown = total.exp().unsqueeze(-1)
    wanted = torch.cat([v, k * grown], dim=-1) * write
    to_end = (total[..., -1:] - total).exp().unsqueeze(-1)
    end = total[..., -1].exp()[..., None, None]
    return system, wanted, q * grown, attend, k * to_end, end


def walked(system, wanted, q, attend, k, end):
    """From chunk to chunk with the state: the outputs, [rows, value heads, tokens, dim] f32."""
    solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    u, w = solved.split([wanted.shape[-1] - q.shape[-1], q.shape[-1]], dim=-1)
    rows, heads, _, _, key_dim = q.shape
    state = q.new_zeros(rows, heads, key_dim, u.shape[-1])
    out = []
    # unbind, because the gradient of an index is as large as the whole
    for u, w, q, attend, k, end in zip(*(x.unbind(2) for x in (u, w, q, attend, k, end))):
        delta = u - w @ state
        out.append(q @ state + attend @ delta)
        state = state * end + k.mT @ delta
    return torch.cat(out, dim=2)


def gated(o, z, gain, eps):
    """o: [rows, value heads, tokens, dim] f32, z: [rows, tokens, value heads·dim]."""
    return (normed(o.transpose(1, 2), gain, eps).flatten(2) * F.silu(z.float())).to(z.dtype)


def mixture(n, real, dtype, top, gate, gate_up, down, shared_gate, shared_up, shared_down, share_gate):
    count, double, _ = gate_up.shape
    inner = double // 2
    chance = F.linear(n, gate.float()).softmax(-1)
    best, index = chance.topk(top, dim=-1)
    taken = torch.zeros_like(chance).scatter(1, index, 1.0)
    weight = chance * taken / best.sum(-1, keepdim=True)

    x = n.to(dtype)
    gates, ups = gate_up.to(dtype).split(inner, dim=1)
    mid = F.silu(F.linear(x, gates.flatten(0, 1))) * F.linear(x, ups.flatten(0, 1))
    mid = mid.view(-1, count, inner) * weight.unsqueeze(-1).to(dtype)
    y = F.linear(mid.flatten(1), down.to(dtype).transpose(0, 1).flatten(1)).float()

    mid = F.silu(F.linear(x, shared_gate.to(dtype))) * F.linear(x, shared_up.to(dtype))
    share = F.linear(n, share_gate.float()).sigmoid()
    y = y + share * F.linear(mid, shared_down.to(dtype)).float()

    real = real.unsqueeze(-1) / real.sum()
    used, likely = (taken * real).sum(0) / top, (chance * real).sum(0)
    return y, count * (used.detach() * likely).sum(), used.detach()


class Functions:
    """The functions above that a compiler may replace."""

    def __init__(self, compile=lambda function: function):
        self.convolved, self.chunked = compile(convolved), compile(chunked)
        self.gated, self.mixture = compile(gated), compile(mixture)


def in_chunks(x, count):
    """[rows, tokens, count·dim] to [rows, count, chunks, 64, dim]."""
    rows = x.shape[0]
    return x.view(rows, -1, CHUNK, count, x.shape[-1] // count).movedim(3, 1)


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def turned(x, context):
    """Rotary embedding on the first dimensions of x [rows, tokens, heads, dim]."""
    half = context.cos.shape[-1]
    cos, sin = context.cos[:, None], context.sin[:, None]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)
