"""Proves the training code on a CPU, in a minute: python training/check.py

- model.py gives the logits of transformers' Qwen3.5 MoE, alone and packed with other documents;
- quant.py rounds as mlx does (when mlx is installed);
- models/seedling can be trained further (check_four_bit.py compares its values, without torch);
- rendered training documents are what the chat template writes.
"""

import copy
import sys

import numpy as np
import torch

from export import load
from family import SEEDLING, SEEDLING_TEXT_CONFIG
from model import Seedling
from quant import dequantised, quantised


def main():
    torch.manual_seed(5)
    check_against_transformers()
    check_packing()
    check_quantisation()
    check_start()
    print("model, packing, quantisation and start are as they should be")


def small_model():
    shape = dict(SEEDLING_TEXT_CONFIG, num_hidden_layers=4, vocab_size=512, num_experts=8)
    shape["layer_types"] = shape["layer_types"][:4]
    model = Seedling(shape)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() > 1 and "conv" not in name:
                value.mul_(3.0)
            elif value.dim() == 1 and "norm" in name:
                value.add_(0.1 * torch.randn_like(value))
    return model, shape


def check_against_transformers():
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    ours, shape = small_model()
    # transformers edits the dictionary it is given
    theirs = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**copy.deepcopy(shape))).float().eval()
    state = {("" if n.startswith("lm_head") else "model.") + n: v for n, v in ours.state_dict().items()}
    theirs.load_state_dict(state, strict=True)
    tokens = torch.randint(0, 480, (2, 192))
    with torch.no_grad():
        want = theirs(tokens).logits
        have, balance, shares = ours(tokens, torch.ones_like(tokens), dtype=torch.float32)
    expect_close("logits against transformers", have, want, 2e-5)
    expect(0.9 < balance < 3.0 and torch.allclose(shares.sum(1), torch.ones(4)), "router shares")


def check_packing():
    """A document in the middle of a row gives the logits it gives alone."""
    ours, _ = small_model()
    tokens = torch.randint(0, 480, (1, 192))
    documents = torch.ones_like(tokens)
    documents[:, 37:150] = 2
    documents[:, 150:] = 3
    alone = torch.zeros(1, 128, dtype=torch.long)
    alone[:, :113] = tokens[:, 37:150]
    with torch.no_grad():
        packed = ours(tokens, documents, dtype=torch.float32)[0][:, 37:150]
        want = ours(alone, torch.ones_like(alone), dtype=torch.float32)[0][:, :113]
    expect_close("packed against alone", packed, want, 1e-4)


def check_quantisation():
    weight = torch.randn(64, 256) * torch.rand(64, 1) + 0.05 * torch.randn(64, 1)
    weight[3] = 0.0
    try:
        import mlx.core as mx
    except ImportError:
        print("mlx is not installed: rounding is not compared with it")
        return
    for bits in (4, 8):
        rounded = mx.array(weight.numpy()).astype(mx.bfloat16)
        steps, scales, biases = mx.quantize(rounded, group_size=64, bits=bits)
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
        want = mx.dequantize(steps, scales, biases, group_size=64, bits=bits)
        have = dequantised(*quantised(weight.bfloat16(), bits)).view(64, 256)
        same = np.mean(np.array(want) == have.numpy())
        expect(same > 0.99, f"{bits} bits: {same:.4f} of the values equal mlx's")
        print(f"{bits} bits: {same:.4f} of the values equal mlx's")


def check_start():
    """The weights of the embedded checkpoint have the names and shapes of the model's parameters."""
    Seedling(SEEDLING_TEXT_CONFIG).load_state_dict(load(SEEDLING), strict=True)


def expect_close(what, have, want, limit):
    error = ((have - want).norm() / want.norm()).item()
    print(f"{what}: relative error {error:.1e}")
    expect(error < limit, f"{what}: {error:.1e} is over {limit:.0e}")


def expect(holds, what):
    if not holds:
        sys.exit(f"not as it should be: {what}")


if __name__ == "__main__":
    main()
