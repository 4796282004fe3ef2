"""mlx-lm as an oracle: exact-math logits of any MLX checkpoint of the family.

MLX computes in bf16 where the parameters are bf16, and its bf16 path on a CPU is coarse. With every
parameter widened to float32 it is the definition that calla is measured against. Widening happens
before mlx-lm adds the 1 to zero-centred norms, so that a gain is 1 + the stored weight, unrounded.
"""

import importlib
import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

MODEL_TYPES = ("qwen3_5", "qwen3_5_moe")


def load_float32(folder):
    """Loads a checkpoint folder with mlx-lm, strictly, every floating parameter in float32.

    Raises ValueError for a model outside the family and for tensors that mlx-lm misses or does not
    know. Quantised weights keep their packed form: only scales and biases are widened.
    """
    model, _ = load_model(Path(folder), get_model_classes=_float32_classes)
    for name, value in tree_flatten(model.parameters()):
        if value.dtype not in (mx.float32, mx.uint32):
            raise ValueError(f"{folder}: {name} is {value.dtype}, not float32 or packed uint32")
    return model


def load_as_published(folder):
    """Loads a checkpoint folder the way an mlx-lm user does. Returns (model, config)."""
    return load_model(Path(folder))


def teacher_forced(model, ids):
    """Logits [n, vocab] float32 for ids [n]: row i is what follows ids[..=i]."""
    logits = model(mx.array(ids, dtype=mx.int32)[None])[0].astype(mx.float32)
    mx.eval(logits)
    return logits


def step_by_step(model, ids):
    """The same logits, fed one token at a time through mlx-lm's cache."""
    cache = model.make_cache()
    rows = []
    for token in ids:
        rows.append(model(mx.array([[int(token)]]), cache=cache)[0, -1])
        mx.eval(rows[-1])
    return mx.stack(rows)


def relative_error(ours, theirs):
    """Norm of the difference over norm of `theirs`."""
    return (mx.linalg.norm(ours - theirs) / mx.linalg.norm(theirs)).item()


def vocab_size(folder):
    """Rows of the logits, from config.json."""
    config = json.loads((Path(folder) / "config.json").read_text())
    return config.get("text_config", config)["vocab_size"]


def _float32_classes(config):
    kind = config["model_type"].removesuffix("_text")
    if kind not in MODEL_TYPES:
        raise ValueError(f"model_type {kind!r} is not one of {', '.join(MODEL_TYPES)}")
    module = importlib.import_module(f"mlx_lm.models.{kind}")

    class Float32Model(module.Model):
        def sanitize(self, weights):
            return super().sanitize({k: _widen(v) for k, v in weights.items()})

    return Float32Model, module.ModelArgs


def _widen(value):
    return value.astype(mx.float32) if mx.issubdtype(value.dtype, mx.floating) else value
