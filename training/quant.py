"""MLX's affine quantisation, round to nearest, as a function to train through.

For a group of 64 values along the input dimension: the end of the range with the larger magnitude
is representable exactly, and so is zero. The gradient passes as if nothing had been rounded.
"""

import torch

GROUP = 64
SCALE_MIN = 1e-7


def rounded(name, weight):
    """What a quantised checkpoint holds of the float32 parameter `weight` called `name`."""
    with torch.no_grad():
        if name.endswith("A_log"):
            exact = weight
        elif weight.dim() == 1 and "norm" in name and "linear_attn" not in name:
            # stored with 1 added
            exact = (weight.bfloat16() + 1.0).bfloat16().float() - 1.0
        elif weight.dim() == 1 or "conv1d" in name:
            exact = weight.bfloat16().float()
        else:
            bits = 8 if name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")) else 4
            exact = dequantised(*quantised(weight.bfloat16(), bits)).view_as(weight)
    return weight + (exact - weight).detach()


def quantised(weight, bits):
    """Steps [groups, 64] f32, scales and biases [groups, 1] f32 on the bfloat16 grid."""
    top = 2**bits - 1
    w = weight.float().view(-1, GROUP)
    low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    scale = ((high - low) / top).clamp(min=SCALE_MIN)
    from_low = low.abs() > high.abs()
    scale = torch.where(from_low, scale, -scale)
    edge = torch.where(from_low, low, high)
    steps_to_edge = (edge / scale).round()
    scale = torch.where(steps_to_edge != 0, edge / steps_to_edge, scale)
    bias = torch.where(steps_to_edge != 0, edge, torch.zeros_like(edge))
    steps = ((w - bias) / scale).round().clamp(0, top)
    return steps, scale.bfloat16().float(), bias.bfloat16().float()


def dequantised(steps, scale, bias):
    return steps * scale + bias
