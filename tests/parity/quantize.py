"""Makes unquantised tiny checkpoints, and what mlx-lm's own conversion makes of them.

    python tests/parity/quantize.py             remake crates/engine/tests/data/bf16 in place
    python tests/parity/quantize.py --check     remake aside, compare with the committed files

Each folder holds a source as other programs publish it, and in golden/ the weights and config.json
of `mlx_lm.convert -q` (its function, on a CPU). What mlx-lm does not read, as experts one by one,
it is given in the nearest form that it does: the values are the same.

groups.safetensors holds single groups, among them equal, one-sided, zero and very small values:
`values` [n, 128] bf16, and for each bits and group size what `mlx.core.quantize` gives as
`B.G.codes`, `B.G.scales`, `B.G.biases`.
"""

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.convert import convert
from mlx_lm.utils import _get_classes
from tokenizers import Tokenizer, models

ROOT = Path(__file__).resolve().parents[2] / "crates/engine/tests/data/bf16"
SHAPE = dict(
    hidden_size=64,
    num_hidden_layers=2,
    full_attention_interval=2,
    vocab_size=64,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_conv_kernel_dim=4,
    layer_types=["linear_attention", "full_attention"],
    rms_norm_eps=1e-6,
    max_position_embeddings=512,
    hidden_act="silu",
    eos_token_id=0,
    rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25),
)
MOE = dict(
    num_experts=3,
    num_experts_per_tok=2,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
)


@dataclass(frozen=True)
class Source:
    """One folder: how its names, dtypes and files differ from the others'."""

    why: str
    seed: int
    model_type: str
    shape: dict
    prefix: str  # of the decoder's tensors, in place of `language_model.model.`
    flat: bool = False  # config.json without text_config
    fused: bool = True  # experts as two tensors, or one by one
    shards: int = 1
    dtypes: dict = field(default_factory=dict)  # name suffix -> dtype, else bfloat16
    extra: tuple = ()  # names of tensors that a conversion leaves out
    generation: dict = field(default_factory=dict)
    weights_of: str = ""  # folder whose golden weights are this one's too


SOURCES = {
    "moe": Source(
        why="the published class: vision, draft, fused experts, float32 A_log, two files",
        seed=1,
        model_type="qwen3_5_moe",
        shape=MOE | dict(tie_word_embeddings=False),
        prefix="model.language_model.",
        shards=2,
        dtypes={"A_log": mx.float32},
        extra=("model.visual.patch_embed.proj.weight", "mtp.norm.weight", "mtp.fc.weight"),
    ),
    "moe_experts": Source(
        why="the text-only class: a flat config.json, experts one by one",
        seed=1,
        model_type="qwen3_5_moe_text",
        shape=MOE | dict(tie_word_embeddings=False),
        prefix="model.",
        flat=True,
        fused=False,
        dtypes={"A_log": mx.float32},
        weights_of="moe",
    ),
    "dense": Source(
        why="a dense member, tied, with its head once more; float16 and float32 among bfloat16",
        seed=2,
        model_type="qwen3_5",
        shape=dict(intermediate_size=128, tie_word_embeddings=True),
        prefix="language_model.model.",
        dtypes={
            "q_proj.weight": mx.float16,
            "q_norm.weight": mx.float16,
            "dt_bias": mx.float16,
            "up_proj.weight": mx.float32,
            "input_layernorm.weight": mx.float32,
            "linear_attn.norm.weight": mx.float32,
        },
        extra=("language_model.lm_head.weight",),
        generation=dict(eos_token_id=[5, 7]),
    ),
}
CENTRED = ("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    if not args.check:
        make_all(ROOT)
        return
    with tempfile.TemporaryDirectory() as aside:
        make_all(Path(aside))
        problems = differences(Path(aside), ROOT)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{len(SOURCES)} conversions by mlx-lm are as committed")


def make_all(root):
    shutil.rmtree(root, ignore_errors=True)
    for name, spec in SOURCES.items():
        make(spec, root / name)
    mx.save_safetensors(str(root / "groups.safetensors"), groups())


def make(spec, folder):
    config = config_of(spec)
    weights = random_weights(spec, config)
    write_source(folder, spec, config, names_of(spec, weights, readable=False))
    with tempfile.TemporaryDirectory() as aside:
        readable = Path(aside) / "source"
        config["model_type"] = config["model_type"].removesuffix("_text")
        write_source(readable, spec, config, names_of(spec, weights, readable=True))
        with contextlib.redirect_stdout(io.StringIO()):
            convert(str(readable), str(Path(aside) / "golden"), quantize=True)
        golden = folder / "golden"
        golden.mkdir()
        shutil.copy(Path(aside) / "golden/config.json", golden)
        if not spec.weights_of:
            shutil.copy(Path(aside) / "golden/model.safetensors", golden)


def config_of(spec):
    text = SHAPE | spec.shape | dict(model_type=spec.model_type.removesuffix("_text") + "_text")
    # mlx-lm changes what it is given.
    text = json.loads(json.dumps(text))
    if spec.flat:
        return text | dict(model_type=spec.model_type, torch_dtype="bfloat16")
    return dict(
        model_type=spec.model_type,
        architectures=["Qwen3_5MoeForConditionalGeneration"],
        text_config=text | dict(dtype="bfloat16"),
        vision_config=dict(depth=1),
        image_token_id=9,
        tie_word_embeddings=spec.shape["tie_word_embeddings"],
    )


def random_weights(spec, config):
    """Unquantised weights under mlx-lm's own names, norms zero-centred."""
    whole = json.loads(json.dumps(config))
    whole["model_type"] = whole["model_type"].removesuffix("_text")
    model_class, args_class = _get_classes(whole)
    model = model_class(args_class.from_dict(whole))
    shapes = {name: value.shape for name, value in tree_flatten(model.parameters())}
    rng = np.random.Generator(np.random.PCG64(spec.seed))
    return {name: random_tensor(rng, spec, name, shapes[name]) for name in sorted(shapes)}


def random_tensor(rng, spec, name, shape):
    value = rng.standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        value *= np.float32(0.3)
    else:
        # Rows of different size and off centre, as trained ones are.
        value *= np.exp(rng.standard_normal(shape[:-1] + (1,), dtype=np.float32)) / 8
        value += rng.standard_normal(shape[:-1] + (1,), dtype=np.float32) / 16
    dtype = next((d for s, d in spec.dtypes.items() if name.endswith(s)), mx.bfloat16)
    return mx.array(value).astype(dtype)


def names_of(spec, weights, readable):
    """The weights in the source's names and layouts, or in the nearest ones that mlx-lm reads."""
    named = {}
    for name, value in weights.items():
        if name.endswith("conv1d.weight"):
            value = value.moveaxis(2, 1)
        name = name.replace("language_model.model.", spec.prefix)
        if spec.prefix.startswith("model."):
            name = name.replace("language_model.lm_head", "lm_head")
        named[name] = value
    for name in [n for n in named if "switch_mlp.gate_proj" in n]:
        mlp = name.removesuffix("switch_mlp.gate_proj.weight")
        gate, up, down = (
            named.pop(f"{mlp}switch_mlp.{role}_proj.weight") for role in ("gate", "up", "down")
        )
        if spec.fused or readable:
            named[f"{mlp}experts.gate_up_proj"] = mx.concatenate([gate, up], axis=1)
            named[f"{mlp}experts.down_proj"] = down
            continue
        for role, stack in (("gate", gate), ("up", up), ("down", down)):
            for expert, value in enumerate(stack):
                named[f"{mlp}experts.{expert}.{role}_proj.weight"] = value
    # mlx-lm drops vision and drafts, but means to drop the head of a tied model and does not.
    extra = [name for name in spec.extra if not (readable and "lm_head" in name)]
    return named | {name: mx.ones((2, 3), dtype=mx.bfloat16) for name in extra}


def write_source(folder, spec, config, weights):
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer_config.json", dict(tokenizer_class="PreTrainedTokenizerFast"))
    Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).save(str(folder / "tokenizer.json"))
    if spec.generation:
        write_json(folder / "generation_config.json", spec.generation)
    names = sorted(weights)
    files = {}
    for part in range(spec.shards):
        file = f"model-{part + 1:05}-of-{spec.shards:05}.safetensors"
        file = file if spec.shards > 1 else "model.safetensors"
        own = {name: mx.contiguous(weights[name]) for name in names[part :: spec.shards]}
        mx.save_safetensors(str(folder / file), own, metadata={"format": "pt"})
        files |= dict.fromkeys(own, file)
    if spec.shards > 1:
        index = dict(metadata={}, weight_map=dict(sorted(files.items())))
        write_json(folder / "model.safetensors.index.json", index)


def groups():
    """Rows of 128 values, ordinary and awkward, and their quantisation."""
    rng = np.random.Generator(np.random.PCG64(3))
    normal = lambda n: rng.standard_normal((n, 128), dtype=np.float32)
    rows = [
        normal(8) * np.float32(10.0) ** rng.integers(-6, 4, (8, 1)).astype(np.float32),
        normal(8) + np.float32(3),
        np.abs(normal(4)),
        -np.abs(normal(4)),
        np.tile(normal(4)[:, :1], 128),
        np.tile(normal(4)[:, :1] * np.float32(1e-8), 128),
        np.zeros((1, 128), np.float32),
        -np.zeros((1, 128), np.float32),
        normal(2) * np.float32(1e-39),
        normal(2) * np.float32(1e37),
        # Few values, so that many lie half way between two codes.
        rng.integers(-2, 3, (8, 128)).astype(np.float32),
        rng.integers(0, 31, (4, 128)).astype(np.float32),
        np.where(rng.random((4, 128)) < 0.01, np.float32(9), normal(4) / 100),
    ]
    values = mx.array(np.concatenate(rows).astype(np.float32)).astype(mx.bfloat16)
    tensors = dict(values=values)
    for bits in (4, 8):
        for group in (32, 64, 128):
            made = mx.quantize(values, group_size=group, bits=bits)
            for part, tensor in zip(("codes", "scales", "biases"), made):
                tensors[f"{bits}.{group}.{part}"] = tensor
    return tensors


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def differences(made, committed):
    """What differs between a tree made now and the committed one, as lines to print."""
    files = {
        path.relative_to(root)
        for root in (made, committed)
        for path in root.rglob("*")
        if path.is_file()
    }
    problems = []
    for file in sorted(files):
        ours, theirs = made / file, committed / file
        if not ours.exists() or not theirs.exists():
            problems.append(f"{theirs}: {'missing' if ours.exists() else 'not made any more'}")
        elif file.suffix == ".safetensors":
            problems += tensor_differences(ours, theirs)
        elif json.loads(ours.read_text()) != json.loads(theirs.read_text()):
            problems.append(f"{theirs}: differs from what the script makes")
    return problems


def tensor_differences(ours, theirs):
    made, committed = mx.load(str(ours)), mx.load(str(theirs))
    same = lambda a, b: a.dtype == b.dtype and a.shape == b.shape and bytes_of(a) == bytes_of(b)
    names = sorted(made.keys() | committed.keys())
    return [
        f"{theirs}: {name} differs from what the script makes"
        for name in names
        if name not in made or name not in committed or not same(made[name], committed[name])
    ]


def bytes_of(array):
    return bytes(memoryview(mx.contiguous(array).reshape(-1).view(mx.uint8)))


if __name__ == "__main__":
    main()
