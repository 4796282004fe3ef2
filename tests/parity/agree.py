"""Writes mlx-lm's exact-math logits of a checkpoint: the file that `calla eval agree` reads.

    python tests/parity/agree.py MODEL_DIR OUT.safetensors --tokens 64 --seed 0
    python tests/parity/agree.py MODEL_DIR OUT.safetensors --ids FILE
    python tests/parity/agree.py MODEL_DIR --load-only

OUT holds `ids` [n] int32 and `logits` [n, vocab] float32, teacher forced, every parameter in
float32. FILE is a .safetensors with `ids`, or a text file of ids apart by blanks, commas or
brackets (JSON too).
"""

import argparse
import re
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

import oracle


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("out", type=Path, nargs="?", help="file to write")
    parser.add_argument("--ids", type=Path, help="take the ids from this file")
    parser.add_argument("--tokens", type=int, default=64, help="random ids, when no --ids (64)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random ids (0)")
    parser.add_argument(
        "--load-only",
        action="store_true",
        help="only prove that mlx-lm loads the folder and computes finite logits, as published",
    )
    args = parser.parse_args()
    if args.load_only == (args.out is not None):
        parser.error("give either an output file or --load-only")
    vocab = oracle.vocab_size(args.model)
    if args.load_only:
        load_only(args.model, vocab)
    else:
        ids = chosen_ids(args, vocab)
        logits = oracle.teacher_forced(oracle.load_float32(args.model), ids)
        mx.save_safetensors(str(args.out), dict(ids=mx.array(ids), logits=logits))
        print(f"{args.out}: {logits.shape[0]} tokens, vocabulary {logits.shape[1]}")


def load_only(folder, vocab):
    """Loads as an mlx-lm user does (own dtypes, strict names) and runs a short prompt."""
    began = time.monotonic()
    model, _ = oracle.load_as_published(folder)
    size = sum(value.nbytes for _, value in tree_flatten(model.parameters()))
    logits = oracle.teacher_forced(model, np.arange(4, dtype=np.int32) % vocab)
    if logits.shape != (4, vocab) or not mx.isfinite(logits).all().item():
        sys.exit(f"{folder}: logits {logits.shape} for vocabulary {vocab}, or not all finite")
    seconds = time.monotonic() - began
    what = f"{size / 1e6:.1f} MB, {len(model.layers)} layers, {seconds:.1f} s"
    print(f"{folder}: mlx-lm loads it ({what})")


def chosen_ids(args, vocab):
    """The ids to feed, [n] int32, each checked against the vocabulary."""
    if args.ids is None:
        if args.tokens < 1:
            sys.exit(f"--tokens {args.tokens}: at least one token is needed")
        rng = np.random.Generator(np.random.PCG64(args.seed))
        return rng.integers(0, vocab, args.tokens).astype(np.int32)
    if args.ids.suffix == ".safetensors":
        ids = np.array(mx.load(str(args.ids))["ids"])
    else:
        ids = np.array([int(t) for t in re.split(r"[\s,\[\]]+", args.ids.read_text()) if t])
    if ids.size == 0 or ids.ndim != 1:
        sys.exit(f"{args.ids}: expected a flat, non-empty list of ids, found shape {ids.shape}")
    if ids.min() < 0 or ids.max() >= vocab:
        sys.exit(f"{args.ids}: ids {ids.min()}..{ids.max()} outside the vocabulary of {vocab}")
    return ids.astype(np.int32)


if __name__ == "__main__":
    main()
