"""Proves that training can go on from models/seedling: python training/check_four_bit.py

What four_bit.py reads, converted by mlx-lm as any published checkpoint, has the names, shapes and
values that mlx dequantises from the folder, bit for bit. Without torch, in seconds.
"""

import json
import sys

import mlx.core as mx
from mlx_lm.models import qwen3_5_moe

from family import SEEDLING, published
from four_bit import load


def main():
    config = json.loads((SEEDLING / "config.json").read_text())
    want = dequantised(config["quantization"])
    have = converted(config)
    expect(sorted(have) == sorted(want), f"names: {sorted(set(have) ^ set(want))}")
    for name, value in want.items():
        expect(have[name].shape == value.shape, f"{name} is {have[name].shape}, not {value.shape}")
        expect(mx.array_equal(have[name], value).item(), f"{name} differs from mlx's")
    count = sum(value.size for value in have.values())
    print(f"{len(have)} tensors, {count} weights: equal to what mlx reads")


def dequantised(quantization):
    """models/seedling as mlx reads it, float32."""
    stored = mx.load(str(SEEDLING / "model.safetensors"))
    wide = lambda name: stored[name].astype(mx.float32)
    found = {}
    for name, value in stored.items():
        module, _, kind = name.rpartition(".")
        if kind in ("scales", "biases"):
            continue
        if value.dtype == mx.uint32:
            of = {**quantization, **quantization.get(module, {})}
            found[name] = mx.dequantize(value, wide(f"{module}.scales"), wide(f"{module}.biases"),
                                        group_size=of["group_size"], bits=of["bits"])
        else:
            found[name] = wide(name)
    return found


def converted(config):
    """What four_bit.py reads, in the published form, then in MLX's."""
    # ModelArgs edits the dictionary it is given
    model = qwen3_5_moe.Model(qwen3_5_moe.ModelArgs.from_dict(json.loads(json.dumps(config))))
    return model.sanitize({published(name): mx.array(value) for name, value in load(SEEDLING).items()})


def expect(holds, what):
    if not holds:
        sys.exit(f"not as it should be: {what}")


if __name__ == "__main__":
    main()
