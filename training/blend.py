"""The mean of two checkpoints' weights, and how sure the model is of its tokens.

    python training/blend.py NEW OLD OUT --share 0.5 --mixers 1 --sharpness 0.75

NEW is the BF16 folder that train.py wrote after it had started from OLD, a folder in the 4-bit form:
so near to each other, the weights between the two make a model as well, and one that keeps more of
what OLD could do. The mixers, attention and DeltaNet, can have a share of their own. `--sharpness`
scales the last norm, and so every logit: no greedy answer changes, but what is not likely gets more
of the probability. OUT gets a BF16 folder. Needs numpy and mlx.
"""

import argparse
import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np

import four_bit
from family import published

INDEX = "model.safetensors.index.json"
LAST_NORM = published("norm.weight")
MIXERS = (".linear_attn.", ".self_attn.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("new", type=Path)
    parser.add_argument("old", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="of NEW in the mean (1)")
    parser.add_argument("--mixers", type=float, help="of NEW in the mixers (as --share)")
    parser.add_argument("--sharpness", type=float, default=1.0, help="factor of the logits (1)")
    args = parser.parse_args()
    old = {published(name): value for name, value in four_bit.load(args.old).items()}
    args.out.mkdir(parents=True)
    for file in sorted(set(json.loads((args.new / INDEX).read_text())["weight_map"].values())):
        weights = mx.load(str(args.new / file))
        for name, value in weights.items():
            share = args.share if args.mixers is None or not any(m in name for m in MIXERS) else args.mixers
            mean = share * np.array(value.astype(mx.float32)) + (1 - share) * old[name]
            if name == LAST_NORM:  # stored around zero
                mean = (1 + mean) * args.sharpness - 1
            weights[name] = mx.array(mean).astype(value.dtype)
        mx.save_safetensors(str(args.out / file), weights, metadata={"format": "pt"})
    for name in (INDEX, "config.json"):
        shutil.copyfile(args.new / name, args.out / name)


if __name__ == "__main__":
    main()
