"""Makes the untrained seedling: random weights in the exact form of a trained checkpoint.

    python training/make_untrained.py            write config, weights and generation settings
    python training/make_untrained.py --check    compare with the committed ones, prove they load

Weights come from numpy's seeded PCG64 and are quantised by mlx-lm as it quantises the family:
4 bits in groups of 64, routers and shared-expert gates 8 bits. --check also proves that config,
tokenizer, template and weights fit together, by loading the folder as users of transformers and
mlx-lm do.
"""

import argparse
import contextlib
import copy
import io
import json
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5_moe
from mlx_lm.utils import quantize_model, save_config, save_model

from family import ADDED_TOKENS, PRE_TOKENISER, SEEDLING, UNTRAINED_TEXT_CONFIG, VOCAB_SIZE
from family import added_token_id

SEED = 20
BYTES_MAX = 4 << 20  # of the whole folder: it is part of every clone and of the binary
MADE = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
)
STOP_IDS = [added_token_id("<|im_end|>"), added_token_id("<|endoftext|>")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    args = parser.parse_args()
    if not args.check:
        make(SEEDLING)
        print(f"{SEEDLING}: {folder_bytes()} bytes")
        return
    with tempfile.TemporaryDirectory() as aside:
        make(Path(aside))
        for name in MADE:
            expect((Path(aside) / name).read_bytes() == (SEEDLING / name).read_bytes(), name)
    check_size()
    check_tokenizer()
    check_loading()
    print("the untrained seedling is as committed and loads in transformers and mlx-lm")


def make(folder):
    """Writes the files named in MADE."""
    config = dict(
        model_type="qwen3_5_moe",
        architectures=["Qwen3_5MoeForConditionalGeneration"],
        eos_token_id=STOP_IDS,
        tie_word_embeddings=UNTRAINED_TEXT_CONFIG["tie_word_embeddings"],
        text_config=UNTRAINED_TEXT_CONFIG,
    )
    # ModelArgs edits the dictionary it is given
    model = qwen3_5_moe.Model(qwen3_5_moe.ModelArgs.from_dict(copy.deepcopy(config)))
    rng = np.random.Generator(np.random.PCG64(SEED))
    # named order, so that the draw does not depend on how mlx-lm lists its modules
    shapes = sorted((name, value.shape) for name, value in tree_flatten(model.parameters()))
    model.load_weights([(name, initial(name, shape, rng)) for name, shape in shapes])
    with contextlib.redirect_stdout(io.StringIO()):
        model, config = quantize_model(model, config, group_size=64, bits=4)
    save_model(folder, model)
    save_config(config, folder / "config.json")
    generation = dict(eos_token_id=STOP_IDS, pad_token_id=STOP_IDS[1], do_sample=False)
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def initial(name, shape, rng):
    """A random tensor. Embeddings are large, routing is decisive and every branch adds little to
    the residual, so that two backends that round differently still write the same noise."""
    if name.endswith("A_log"):
        return mx.array(rng.uniform(0.0, 2.5, shape), dtype=mx.float32)
    if name.endswith("dt_bias"):
        value = rng.uniform(-4.0, 1.0, shape)
    elif len(shape) == 1:
        value = 1.0 + 0.1 * rng.standard_normal(shape)
    elif name.endswith("conv1d.weight"):
        value = 0.3 * rng.standard_normal(shape)
    elif "embed_tokens" in name:
        value = rng.standard_normal(shape)
    else:
        gain = 1.0
        if name.endswith("mlp.gate.weight"):
            gain = 6.0
        elif name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
            gain = 0.3
        value = rng.standard_normal(shape) * (gain / shape[-1] ** 0.5)
    return mx.array(value, dtype=mx.float32).astype(mx.bfloat16)


def check_size():
    expect(folder_bytes() <= BYTES_MAX, f"{folder_bytes()} bytes, at most {BYTES_MAX}")


def check_tokenizer():
    """tokenizer.json, its config and config.json name the same ids."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(SEEDLING / "tokenizer.json"))
    config = read("config.json")
    vocab = config["text_config"]["vocab_size"]
    expect(tokenizer.get_vocab_size() == vocab == VOCAB_SIZE, "vocabulary sizes differ")
    listed = read("tokenizer_config.json")["added_tokens_decoder"]
    for text, special in ADDED_TOKENS:
        token = added_token_id(text)
        expect(tokenizer.token_to_id(text) == token, f"id of {text}")
        expect(listed[str(token)]["special"] == special, f"special flag of {text}")
        expect(tokenizer.encode(text).ids == [token], f"{text} is not one token")
    expect(read("generation_config.json")["eos_token_id"] == config["eos_token_id"], "stop ids")
    split = read("tokenizer.json")["pre_tokenizer"]["pretokenizers"][0]
    expect(split["pattern"]["Regex"] == PRE_TOKENISER, "pre-tokeniser")


def check_loading():
    """The folder loads strictly in mlx-lm and transformers; a chat prompt goes there and back."""
    import mlx_lm
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    model, _ = mlx_lm.load(str(SEEDLING))
    tokenizer = AutoTokenizer.from_pretrained(SEEDLING)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Grüße, 12 naïve 🦊! <think>\n  x = 1\t# 東京"},
    ]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    expect(prompt.endswith("<|im_start|>assistant\n<think>\n"), "tail of the rendered prompt")
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    expect(ids == Tokenizer.from_file(str(SEEDLING / "tokenizer.json")).encode(prompt).ids, "ids")
    expect(tokenizer.decode(ids, skip_special_tokens=False) == prompt, "decoded prompt")
    logits = model(mx.array([ids]))
    expect(logits.shape == (1, len(ids), VOCAB_SIZE), f"logits {logits.shape}")
    expect(mx.isfinite(logits).all().item(), "logits are not finite")


def folder_bytes():
    return sum(path.stat().st_size for path in SEEDLING.iterdir())


def read(name):
    return json.loads((SEEDLING / name).read_text())


def expect(holds, what):
    if not holds:
        sys.exit(f"{SEEDLING}: not as it should be: {what}")


if __name__ == "__main__":
    main()
