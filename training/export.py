"""Weights to and from the form in which the family is published: bfloat16, unconverted names.

Shards stay under 16 MiB. A_log keeps float32, norms are stored around zero. A folder in the 4-bit
form, such as models/seedling, can be read as well.
"""

import json

import torch
from safetensors.torch import load_file, save_file

import four_bit
from family import PREFIX, added_token_id, published

SHARD_BYTES_MAX = 15 << 20


def save(state, shape, folder):
    """Writes shards, their index and config.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    shards, size = [{}], 0
    for name, value in state.items():
        value = value.detach().cpu()
        value = value.float() if name.endswith("A_log") else value.bfloat16()
        if size + value.nbytes > SHARD_BYTES_MAX:
            shards.append({})
            size = 0
        size += value.nbytes
        shards[-1][published(name)] = value.contiguous()
    places = {}
    for i, shard in enumerate(shards, start=1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, file))
    total = sum(value.nbytes for shard in shards for value in shard.values())
    index = dict(metadata=dict(total_size=total), weight_map=places)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(config(shape), indent=2) + "\n")


def load(folder):
    """The state dict of a folder that `save` has written or that is in the 4-bit form, float32."""
    if four_bit.is_quantised(folder):
        return {name: torch.from_numpy(value) for name, value in four_bit.load(folder).items()}
    state = {}
    for file in sorted(folder.glob("model-*.safetensors")):
        for name, value in load_file(file).items():
            state[name.removeprefix(PREFIX)] = value.float()
    if not state:
        raise FileNotFoundError(f"{folder} holds no model-*.safetensors")
    return state


def config(shape):
    stops = [added_token_id("<|im_end|>"), added_token_id("<|endoftext|>")]
    return dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"],
        model_type="qwen3_5_moe",
        dtype="bfloat16",
        eos_token_id=stops,
        tie_word_embeddings=shape["tie_word_embeddings"],
        text_config=dict(shape, dtype="bfloat16"),
    )
