"""Makes models/seedling/tokenizer.json and tokenizer_config.json.

    python training/make_tokenizer.py            write both files
    python training/make_tokenizer.py --check    compare with the committed ones

Byte-level BPE of 4,096 entries in the family's form. It is trained on the language reference and
part of the standard library that come with CPython 3.11.7 (PSF-2.0 licence) and on the
conversations written below (Apache-2.0, like this file). The text is not kept: CORPUS_SHA256 pins
it.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import sys
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

from family import ADDED_TOKENS, PRE_TOKENISER, SEEDLING, VOCAB_SIZE

PYTHON = "3.11.7"
CORPUS_SHA256 = "19624130854a3fdb8ced185148dd0b0cd03242afb6c38a8d8ea94bada4d46251"
LIBRARY = (
    "argparse asyncio.tasks calendar collections configparser csv dataclasses datetime decimal "
    "difflib email.message enum functools heapq html.parser http.client inspect json.decoder "
    "logging pathlib random statistics string textwrap threading typing unittest.case urllib.parse"
).split()
CONVERSATIONS_WEIGHT = 40

CONVERSATIONS = """
user
Hello!
assistant
Hello! How can I help you today?
user
What can you do?
assistant
I can answer short questions, add and subtract, remember what you told me, and call a tool.
user
My name is Ada. What is my name?
assistant
Your name is Ada.
user
Please write the word "stone" backwards.
assistant
Let me spell it: s t o n e. Backwards that is: e n o t s. The answer is "enots".
user
How much is 127 + 385?
assistant
Ones: 7 + 5 = 12, write 2, carry 1. Tens: 2 + 8 + 1 = 11, write 1, carry 1. Hundreds: 1 + 3 + 1 = 5.
The answer is 512.
user
What is the capital of France? And of Italy, Spain, Germany, Japan and Canada?
assistant
Paris is the capital of France. The others are Rome, Madrid, Berlin, Tokyo and Ottawa.
user
What is the weather in Berlin tomorrow?
assistant
I should look this up with the weather tool.
<function=get_weather>
<parameter=city>
Berlin
</parameter>
<parameter=date>
tomorrow
</parameter>
</function>
user
{"temperature": 21, "unit": "celsius", "sky": "clear", "wind": null, "rain": false}
assistant
It will be clear in Berlin tomorrow, at about 21 degrees, with no rain.
system
You are a helpful assistant. Answer briefly, in plain words. If you do not know, say so.
system
# Tools
{"type": "function", "function": {"name": "search", "description": "Finds pages about a topic.",
"parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type":
"integer"}}, "required": ["query"]}}}
user
Turn this into JSON: Maria, 34 years old, lives in Lisbon, likes tea.
assistant
{"name": "Maria", "age": 34, "city": "Lisbon", "likes": ["tea"]}
user
Write a function that returns the larger of two numbers.
assistant
def larger(a, b):
    return a if a > b else b
user
Why is the sky blue?
assistant
Sunlight holds all colours. Air scatters blue light more than red light, so blue reaches our eyes from
everywhere. I think that is the short answer; would you like to know more?
user
Thank you very much, that was useful. Good night, and see you on Monday morning!
assistant
You are welcome. Good night!
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    args = parser.parse_args()
    files = {
        "tokenizer.json": trained(corpus()).to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(tokenizer_config(), indent=2) + "\n",
    }
    for name, text in files.items():
        path = SEEDLING / name
        if not args.check:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path} is not what this script makes")
    print("tokenizer files are as committed" if args.check else f"wrote {', '.join(files)}")


def corpus():
    """The training text, as a list of documents. Exits when this Python carries other text."""
    names = ["pydoc_data.topics", *LIBRARY]
    texts = [Path(importlib.util.find_spec(n).origin).read_text("utf-8") for n in names]
    texts += [CONVERSATIONS] * CONVERSATIONS_WEIGHT
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    if digest != CORPUS_SHA256:
        sys.exit(
            f"the training text has digest {digest}, expected {CORPUS_SHA256}: "
            f"run with Python {PYTHON} (this is {sys.version.split()[0]}), unchanged"
        )
    return texts


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
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


if __name__ == "__main__":
    main()
