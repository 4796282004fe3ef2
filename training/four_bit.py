"""Weights of a checkpoint in MLX's affine 4-bit form, such as models/seedling, widened for training.

The names and the layout become those that `export.save` writes, without the prefix: experts fused,
norms around zero, convolutions [channels, 1, taps]. Needs numpy and safetensors, not torch.
"""

import json

import numpy as np
from safetensors import deserialize

FILE = "model.safetensors"
OUTER, INNER = "language_model.", "language_model.model."
WHOLE_BITS = (2, 4, 8)  # these divide a word of 32 bits
CENTRED_NORMS = ("layernorm.weight", "q_norm.weight", "k_norm.weight")


def is_quantised(folder):
    """Whether the folder's config.json says that its weights are quantised."""
    return "quantization" in json.loads((folder / "config.json").read_text())


def load(folder):
    """Every weight by its training name, float32. ValueError: not MLX's affine form."""
    stored = tensors(folder / FILE)
    quantization = json.loads((folder / "config.json").read_text())["quantization"]
    whole = {}
    for name, value in stored.items():
        module, _, kind = name.rpartition(".")
        if kind in ("scales", "biases"):
            continue  # read with their weight
        if value.dtype == np.uint32:
            value = dequantised(folder, stored, module, quantization)
        whole[name] = value
    return unconverted(whole)


def dequantised(folder, stored, module, quantization):
    """The matrix [..., out, in] of a module: steps · scale + bias, for each group of inputs."""
    of = {**quantization, **quantization.get(module, {})}
    bits, group, mode = of["bits"], of["group_size"], of.get("mode", "affine")
    if mode != "affine" or bits not in WHOLE_BITS:
        raise ValueError(f"{folder}: {module} is quantised as {mode} in {bits} bits: not read here")
    try:
        words, scales, biases = (stored[f"{module}.{kind}"] for kind in ("weight", "scales", "biases"))
    except KeyError as missing:
        raise ValueError(f"{folder / FILE}: {missing} is missing") from None
    # the first input is in the lowest bits
    places = np.arange(0, 32, bits, dtype=np.uint32)
    steps = (words[..., None] >> places) & np.uint32(2**bits - 1)
    if scales.shape != biases.shape or steps[..., 0].size * len(places) != scales.size * group:
        raise ValueError(f"{folder / FILE}: {module} has {scales.shape} scales and {biases.shape} biases "
                         f"for {words.shape} words of {bits} bits, groups of {group}")
    grouped = steps.reshape(*scales.shape, group).astype(np.float32)
    return (grouped * scales[..., None] + biases[..., None]).reshape(*words.shape[:-1], -1)


def unconverted(stored):
    """What MLX's conversion did to names and layout, undone."""
    plain = {name.removeprefix(INNER if name.startswith(INNER) else OUTER): v for name, v in stored.items()}
    found = {}
    for name, value in plain.items():
        if name.endswith("switch_mlp.up_proj.weight"):
            continue  # behind its gate
        if name.endswith("switch_mlp.gate_proj.weight"):
            up = plain[name.replace("gate_proj", "up_proj")]
            name = name.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj")
            value = np.concatenate([value, up], axis=1)
        elif name.endswith("switch_mlp.down_proj.weight"):
            name = name.replace("switch_mlp.down_proj.weight", "experts.down_proj")
        elif name.endswith("conv1d.weight"):
            value = np.moveaxis(value, 1, 2)
        elif name.endswith(CENTRED_NORMS) or name == "norm.weight":
            value = value - np.float32(1)
        found[name] = np.array(value, order="C")  # a copy, since torch wants it writable
    return found


def tensors(path):
    """All tensors of a file: packed words as uint32, everything else as float32."""
    found = {}
    for name, tensor in deserialize(path.read_bytes()):
        dtype, shape, data = tensor["dtype"], tensor["shape"], tensor["data"]
        if dtype == "BF16":  # the upper half of a float32
            value = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        elif dtype in ("F32", "U32"):
            value = np.frombuffer(data, "<f4" if dtype == "F32" else "<u4")
        else:
            raise ValueError(f"{path}: {name} is {dtype}, not BF16, F32 or U32")
        found[name] = value.reshape(shape)
    return found
