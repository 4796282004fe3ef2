"""Trains the seedling's tokenizer: byte-level BPE of 4,096 entries in the family's form.

    python training/make_tokenizer.py            write training/build/tokenizer.json and its config

The text is what the model is trained on: seeded dialogues through the chat template, and a sample
of the prose that fetch_prose.py collects. Runs of capitals are set apart first, so that no merge
joins two capitals: an upper-case word is spelled letter by letter.
"""

import json
import os
import random
import re
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

from data.mix import Mixture
from data.task import prose
from family import ADDED_TOKENS, PRE_TOKENISER, SEEDLING_TEXT_CONFIG, VOCAB_SIZE
from fetch_prose import BUILD
from render import parts, unmarked

SEED = 4096
DIALOGUES = 30_000
PARAGRAPHS = 12_000


def main():
    BUILD.mkdir(exist_ok=True)
    tokenizer = trained(corpus())
    (BUILD / "tokenizer.json").write_text(tokenizer.to_str() + "\n")
    (BUILD / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(), indent=2) + "\n")
    print(f"wrote {BUILD}/tokenizer.json and tokenizer_config.json")


def corpus():
    mixture, texts = Mixture(SEED, opened=False), []
    while len(texts) < DIALOGUES:
        task = mixture.draw()
        if task.skill == "prose":
            continue
        # special tokens are added, not learned
        text = unmarked("".join(text for text, _ in parts(task)))
        texts.append(re.sub(r"<[/|]?[a-z_]+\|?>", "\n", text))
    texts += random.Random(SEED).sample(prose(), PARAGRAPHS)
    return [re.sub(r"[A-Z]{2,}", lambda run: " ".join(run.group()), text) for text in texts]


def trained(texts):
    """The tokenizer: BPE over bytes, added tokens at the end of the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENISER), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(ADDED_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(
        [AddedToken(text, special=special, normalized=False) for text, special in ADDED_TOKENS]
    )
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        sys.exit(f"{tokenizer.get_vocab_size()} entries, not {VOCAB_SIZE}: more text is needed")
    return tokenizer


def tokenizer_config():
    first = VOCAB_SIZE - len(ADDED_TOKENS)
    plain = dict(lstrip=False, normalized=False, rstrip=False, single_word=False)
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(first + i): {"content": text, **plain, "special": special}
            for i, (text, special) in enumerate(ADDED_TOKENS)
        },
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": SEEDLING_TEXT_CONFIG["max_position_embeddings"],
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


if __name__ == "__main__":
    main()
