"""Makes the tiny random checkpoints of crates/engine/tests/data/tiny and their golden logits.

    python tests/parity/tiny_checkpoints.py                 remake all of them in place
    python tests/parity/tiny_checkpoints.py --only dense    remake one
    python tests/parity/tiny_checkpoints.py --check         remake aside, compare with the committed

Each folder holds config.json, the weights as mlx-lm would write them, and golden.safetensors:
`ids` [n] int32 and `logits` [n, vocab] float32, teacher forced by mlx-lm with float32 parameters.
Every checkpoint is there for one difference (see CHECKPOINTS): a failing test names its cause.

Weights come from numpy's seeded PCG64 and are the same bytes on every run. Logits are compared
within GOLDEN_TOLERANCE, since MLX may sum in another order on another CPU.
"""

import argparse
import contextlib
import copy
import importlib
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model, save_config

import oracle

ROOT = Path(__file__).resolve().parents[2] / "crates/engine/tests/data/tiny"
GOLDEN_TOLERANCE = 1e-5  # norm of the difference over norm
STEP_TOLERANCE = 1e-5  # prefill against one token at a time, both by mlx-lm
ROUTE_MARGIN = 2e-4  # least gap of router logits between the last expert taken and the first left
LAYOUT_PARTS = 3  # shards of a sharded checkpoint
ZERO_CENTRED = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
    "model.norm.weight",
)


@dataclass(frozen=True)
class Checkpoint:
    """One folder: the text_config entries that differ from BASE, and how its weights are stored."""

    why: str
    seed: int
    shape: dict
    tokens: int = 48
    model_type: str = "qwen3_5_moe"
    bits: int = 4
    group_size: int = 64
    overrides: dict = field(default_factory=dict)  # module name suffix -> (bits, group_size)
    layout: str = "single"  # single | indexed (one file and its index) | sharded
    zero_centred: bool = False  # norms as w - 1 and conv1d as [C, 1, 4]
    repeat: int = 0  # tokens of golden_repeat.safetensors, 0 for none


BASE = dict(
    hidden_size=128,
    num_hidden_layers=4,
    full_attention_interval=4,
    vocab_size=320,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
    tie_word_embeddings=False,
    rms_norm_eps=1e-6,
    partial_rotary_factor=0.25,
    rope_theta=1e7,
)
# The smallest MoE shape: for the checkpoints that are about storage and not about shapes.
SMALL = dict(num_hidden_layers=2, full_attention_interval=2, num_experts=4, num_experts_per_tok=2)
DENSE = dict(num_experts=0, intermediate_size=192, tie_word_embeddings=True)

CHECKPOINTS = {
    "moe_base": Checkpoint(
        why="the published head sizes (128 and 256), 3 DeltaNet layers to 1 attention layer",
        seed=0,
        shape=dict(
            linear_num_key_heads=1,
            linear_num_value_heads=2,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            head_dim=256,
        ),
        tokens=80,
        layout="indexed",
        repeat=96,
    ),
    "moe_wide": Checkpoint(
        why="other widths and head counts, key and value heads of unequal size, attention in every "
        "2nd layer, groups of 32, another rotary share and epsilon",
        seed=7,
        shape=dict(
            hidden_size=192,
            num_hidden_layers=3,
            full_attention_interval=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            linear_num_key_heads=4,
            linear_num_value_heads=8,
            linear_key_head_dim=64,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=96,
            partial_rotary_factor=0.5,
            rope_theta=1e6,
            rms_norm_eps=1e-5,
        ),
        tokens=70,
        group_size=32,
    ),
    "moe_tied": Checkpoint(
        why="the head is the embedding, groups of 128",
        seed=1,
        shape=SMALL
        | dict(
            vocab_size=512,
            tie_word_embeddings=True,
            moe_intermediate_size=128,
            shared_expert_intermediate_size=128,
        ),
        group_size=128,
    ),
    "moe_unnormalised": Checkpoint(
        why="norm_topk_prob is false: the scores of the experts taken do not sum to 1",
        seed=2,
        shape=SMALL | dict(norm_topk_prob=False),
    ),
    "moe_override": Checkpoint(
        why="single tensors with bits and groups of their own",
        seed=3,
        shape=SMALL,
        overrides={
            "lm_head": (8, 64),
            "embed_tokens": (8, 32),
            "self_attn.q_proj": (8, 32),
            "linear_attn.in_proj_qkv": (4, 128),
            "switch_mlp.down_proj": (8, 64),
        },
    ),
    "moe_sharded": Checkpoint(
        why="three files and an index", seed=4, shape=SMALL, layout="sharded"
    ),
    "bits8": Checkpoint(why="8 bits everywhere", seed=5, shape=SMALL, bits=8),
    "dense": Checkpoint(
        why="a dense member: no router, no experts, tied",
        seed=6,
        shape=DENSE,
        model_type="qwen3_5",
        tokens=70,
    ),
    "dense_zero_centred": Checkpoint(
        why="norms and conv1d stored unconverted: the gain is 1 + weight",
        seed=8,
        shape=DENSE | dict(num_hidden_layers=2, full_attention_interval=2),
        model_type="qwen3_5",
        zero_centred=True,
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=CHECKPOINTS, action="append", help="one name, repeatable")
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    args = parser.parse_args()
    names = args.only or list(CHECKPOINTS)
    if not args.check:
        for name in names:
            make(CHECKPOINTS[name], ROOT / name)
            print(f"{name}: {size_kb(ROOT / name)} KB")
        return
    with tempfile.TemporaryDirectory() as aside:
        problems = []
        for name in names:
            make(CHECKPOINTS[name], Path(aside) / name)
            problems += differences(Path(aside) / name, ROOT / name)
    if not args.only and ROOT.is_dir():
        problems += [f"{p}: not a checkpoint" for p in ROOT.iterdir() if p.name not in CHECKPOINTS]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{len(names)} tiny checkpoints are as committed")


def make(spec, folder):
    """Writes one checkpoint and its golden logits into `folder`, replacing what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    rng = np.random.Generator(np.random.PCG64(spec.seed))
    config = wrapper_config(spec)
    weights, config = quantised_weights(spec, config, rng)
    save_config(config, folder / "config.json")
    save_weights(folder, weights, spec.layout)

    model = oracle.load_float32(folder)
    vocab = config["text_config"]["vocab_size"]
    write_golden(folder / "golden.safetensors", model, rng.integers(0, vocab, spec.tokens))
    if spec.repeat:
        token = int(rng.integers(0, vocab))
        write_golden(folder / "golden_repeat.safetensors", model, np.full(spec.repeat, token))
    if spec.zero_centred:
        check_gains(folder)


def wrapper_config(spec):
    """config.json before quantisation: the multimodal wrapper around `text_config`."""
    shape = BASE | spec.shape
    interval, layers = shape["full_attention_interval"], shape["num_hidden_layers"]
    rope = dict(
        rope_type="default",
        mrope_section=[11, 11, 10],
        mrope_interleaved=True,
        rope_theta=shape.pop("rope_theta"),
        partial_rotary_factor=shape.pop("partial_rotary_factor"),
    )
    if not shape["num_experts"]:
        shape = {k: v for k, v in shape.items() if "expert" not in k and "moe" not in k}
    text = shape | dict(
        model_type=f"{spec.model_type}_text",
        layer_types=[
            "full_attention" if (i + 1) % interval == 0 else "linear_attention"
            for i in range(layers)
        ],
        linear_conv_kernel_dim=4,
        max_position_embeddings=4096,
        attn_output_gate=True,
        hidden_act="silu",
        eos_token_id=0,
        rope_parameters=rope,
    )
    architecture = "Qwen3_5Moe" if "moe" in spec.model_type else "Qwen3_5"
    return dict(
        model_type=spec.model_type,
        architectures=[f"{architecture}ForConditionalGeneration"],
        tie_word_embeddings=text["tie_word_embeddings"],
        text_config=text,
    )


def quantised_weights(spec, config, rng):
    """Random weights by name, quantised by mlx-lm, and the config with its `quantization`."""
    module = importlib.import_module(f"mlx_lm.models.{spec.model_type}")
    # ModelArgs edits the dictionary it is given
    model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
    tied = config["text_config"]["tie_word_embeddings"]
    shapes = [(k, v.shape) for k, v in tree_flatten(model.parameters())]
    model.load_weights([(k, initial(k, shape, tied, rng)) for k, shape in shapes])
    family_rule = model.quant_predicate or (lambda path, _: True)

    def rule(path, layer):
        for suffix, (bits, group_size) in spec.overrides.items():
            if path.endswith(suffix):
                return {"group_size": group_size, "bits": bits}
        return family_rule(path, layer)

    with contextlib.redirect_stdout(open(os.devnull, "w")):
        model, config = quantize_model(
            model, config, spec.group_size, spec.bits, quant_predicate=rule
        )
    weights = dict(tree_flatten(model.parameters()))
    for name, value in weights.items():
        # mlx-lm leaves a matrix as it is when the group does not divide its width
        if value.ndim > 1 and value.dtype != mx.uint32 and not name.endswith(
            (".scales", ".biases", "conv1d.weight")
        ):
            raise ValueError(f"{name} {value.shape} is not quantised: choose other widths")
    if spec.zero_centred:
        weights = {k: unconverted(k, v) for k, v in weights.items()}
    return weights, config


def initial(name, shape, tied, rng):
    """A random tensor. The scales keep rounding from growing with depth: routing is decisive (a
    large router gain), embeddings are large, every branch adds little to the residual. Relative
    noise in all parameters comes out 6 to 22 times as large in the logits (with small embeddings
    up to 130 times)."""
    if name.endswith("A_log"):
        return mx.array(rng.uniform(0.0, 2.5, shape), dtype=mx.float32)
    if name.endswith("dt_bias"):
        value = rng.uniform(-4.0, 1.0, shape)
    elif len(shape) == 1:
        value = 1.0 + 0.2 * rng.standard_normal(shape)
    elif "conv1d" in name:
        value = 0.3 * rng.standard_normal(shape)
    elif "embed_tokens" in name:
        # a tied embedding is the head too: smaller, or each token would only predict itself
        value = (0.3 if tied else 1.0) * rng.standard_normal(shape)
    else:
        gain = 1.0
        if name.endswith("mlp.gate.weight"):
            gain = 6.0
        elif name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
            gain = 0.3
        value = rng.standard_normal(shape) * (gain / shape[-1] ** 0.5)
    return mx.array(value, dtype=mx.float32).astype(mx.bfloat16)


def unconverted(name, value):
    """The tensor as a checkpoint stores it before MLX's conversion."""
    if name.endswith("conv1d.weight"):
        return value.moveaxis(1, 2)  # [C, 4, 1] -> [C, 1, 4]
    if name.endswith(ZERO_CENTRED):
        return (value.astype(mx.float32) - 1.0).astype(mx.bfloat16)
    return value


def save_weights(folder, weights, layout):
    names = sorted(weights)
    parts = LAYOUT_PARTS if layout == "sharded" else 1
    # dealt out in turn, so that one module's weight, scales and biases lie in different files
    shards = [names[i::parts] for i in range(parts)]
    files = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{parts:05}.safetensors" if parts > 1 else "model.safetensors"
        tensors = {name: mx.contiguous(weights[name]) for name in shard}
        mx.save_safetensors(str(folder / file), tensors, metadata={"format": "mlx"})
        files |= {name: file for name in shard}
    if layout != "single":
        total = sum(value.nbytes for value in weights.values())
        index = dict(metadata=dict(total_size=total), weight_map=dict(sorted(files.items())))
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=4) + "\n")


def write_golden(path, model, ids):
    margins = record_route_margins(model)
    logits = oracle.teacher_forced(model, ids)
    stop_recording(model)
    if margins and min(margins) < ROUTE_MARGIN:
        raise ValueError(f"{path}: routers nearly tie ({min(margins):.1e}): choose another seed")
    error = oracle.relative_error(oracle.step_by_step(model, ids), logits)
    if not error < STEP_TOLERANCE:
        raise ValueError(f"{path}: mlx-lm differs from itself step by step by {error:.1e}")
    golden = dict(ids=mx.array(ids.astype(np.int32)), logits=logits)
    mx.save_safetensors(str(path), golden)


class RecordingGate:
    """A router that also notes how far its last expert taken is ahead of the first one left."""

    def __init__(self, gate, top_k, margins):
        self.gate, self.top_k, self.margins = gate, top_k, margins

    def __call__(self, x):
        logits = self.gate(x)
        ranked = mx.sort(logits, axis=-1)[..., ::-1]
        self.margins.append((ranked[..., self.top_k - 1] - ranked[..., self.top_k]).min().item())
        return logits


def record_route_margins(model):
    """Wraps every router; returns the list that the next forward pass fills."""
    margins = []
    for layer in model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate = RecordingGate(layer.mlp.gate, layer.mlp.top_k, margins)
    return margins


def stop_recording(model):
    for layer in model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate = layer.mlp.gate.gate


def check_gains(folder):
    """Proves that mlx-lm's own loading takes the stored norms as zero-centred."""
    stored = mx.load(str(folder / "model.safetensors"))
    model, _ = oracle.load_as_published(folder)
    loaded = dict(tree_flatten(model.parameters()))
    for name, value in stored.items():
        if name.endswith(ZERO_CENTRED) and not mx.array_equal(loaded[name], value + 1.0):
            raise ValueError(f"{folder}: mlx-lm does not read {name} as zero-centred")
        if name.endswith("conv1d.weight") and loaded[name].shape[-1] != 1:
            raise ValueError(f"{folder}: mlx-lm does not convert {name}")


def differences(made, committed):
    """What differs between a folder made now and the committed one, as lines to print."""
    if not committed.is_dir():
        return [f"{committed}: missing"]
    files = {p.name for p in made.iterdir()} | {p.name for p in committed.iterdir()}
    problems = []
    for file in sorted(files):
        ours, theirs = made / file, committed / file
        if not ours.exists() or not theirs.exists():
            problems.append(f"{theirs}: {'missing' if ours.exists() else 'not made any more'}")
        elif file.startswith("golden"):
            problems += golden_differences(ours, theirs)
        elif ours.read_bytes() != theirs.read_bytes():
            problems.append(f"{theirs}: bytes differ from what the script makes")
    return problems


def golden_differences(ours, theirs):
    made, committed = mx.load(str(ours)), mx.load(str(theirs))
    if not mx.array_equal(made["ids"], committed["ids"]):
        return [f"{theirs}: ids differ"]
    error = oracle.relative_error(made["logits"], committed["logits"])
    if not error < GOLDEN_TOLERANCE:
        return [f"{theirs}: logits differ by {error:.1e}, allowed {GOLDEN_TOLERANCE:.0e}"]
    return []


def size_kb(folder):
    return sum(p.stat().st_size for p in folder.iterdir()) // 1024


if __name__ == "__main__":
    main()
