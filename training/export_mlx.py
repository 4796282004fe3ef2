"""Converts exported weights by mlx-lm, to compare with `calla quantize`.

    python training/export_mlx.py BF16_FOLDER OUT_FOLDER

BF16_FOLDER is what train.py writes. OUT_FOLDER gets the 4-bit checkpoint (groups of 64; routers and
shared-expert gates 8 bits), the tokenizer of training/build and the template of models/seedling.
"""

import argparse
import contextlib
import io
import json
import shutil
from pathlib import Path

import mlx.core as mx
from mlx_lm.models import qwen3_5_moe
from mlx_lm.utils import quantize_model, save_config, save_model

from family import SEEDLING
from fetch_prose import BUILD


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    config = json.loads((args.source / "config.json").read_text())
    # ModelArgs edits the dictionary it is given
    model = qwen3_5_moe.Model(qwen3_5_moe.ModelArgs.from_dict(json.loads(json.dumps(config))))
    weights = {}
    for shard in sorted(args.source.glob("model-*.safetensors")):
        weights.update(mx.load(str(shard)))
    weights = model.sanitize(weights)
    keep = lambda name, value: value if name.endswith("A_log") else value.astype(mx.bfloat16)
    model.load_weights([(name, keep(name, value)) for name, value in weights.items()])
    with contextlib.redirect_stdout(io.StringIO()):
        model, config = quantize_model(model, config, group_size=64, bits=4)
    args.out.mkdir(parents=True, exist_ok=True)
    save_model(args.out, model)
    save_config(config, args.out / "config.json")
    stops = config["eos_token_id"]
    generation = dict(eos_token_id=stops, pad_token_id=stops[1], do_sample=False)
    (args.out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    for folder, name in ((BUILD, "tokenizer.json"), (BUILD, "tokenizer_config.json"), (SEEDLING, "chat_template.jinja")):
        shutil.copyfile(folder / name, args.out / name)
    print(f"{args.out}: {sum(path.stat().st_size for path in args.out.iterdir())} bytes")


if __name__ == "__main__":
    main()
