"""How near calla is to mlx-lm on text: top tokens and perplexity over the texts of the exam.

    python tests/parity/text_agreement.py [--calla target/release/calla] [--positions 6000]

Renders the items of an exam with transformers and the answers that are expected, tokenises them
with `tokenizers`, computes exact-math logits with mlx-lm (oracle.py), writes the file that `calla
eval agree --against` reads, and holds each mode of calla to the limits below. The texts come in
rounds, one item of every skill in each, until there are enough positions; the 4,096 token prompts
are left out unless --long says how many to take.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

import oracle

SEEDLING = Path(__file__).resolve().parents[2] / "models/seedling"
LONG = "recall_4096"
TOP1_AGREEMENT_MIN = 0.99
PERPLEXITY_REL_ERROR_MAX = 4e-4
MODES = {
    "cpu default": (),
    "cpu exact": ("--precision", "exact"),
    "reference": ("--backend", "reference"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calla", default="target/release/calla", help="the program (target/release/calla)")
    parser.add_argument("--model", type=Path, default=SEEDLING, help="checkpoint folder (models/seedling)")
    parser.add_argument("--exam", type=Path, default=SEEDLING / "exam.jsonl", help="items (the seedling's)")
    parser.add_argument("--positions", type=int, default=6000, help="at least so many (6000)")
    parser.add_argument("--long", type=int, default=0, help=f"items of {LONG} besides (0)")
    parser.add_argument("--modes", default="cpu default,cpu exact", help="apart by commas (cpu default,cpu exact)")
    parser.add_argument("--keep", type=Path, help="write the logits here and leave them")
    args = parser.parse_args()

    sequences = tokenised(args)
    model = oracle.load_float32(args.model)
    logits = [oracle.teacher_forced(model, ids) for ids in sequences]
    perplexity = perplexity_of(sequences, logits)
    positions = sum(map(len, sequences))
    print(f"{len(sequences)} texts, {positions} positions, mlx-lm's perplexity {perplexity:.5f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = args.keep or Path(folder) / "logits.safetensors"
        starts = np.cumsum([0, *map(len, sequences)])[:-1].astype(np.int32)
        ids = np.concatenate(sequences)
        tensors = dict(ids=mx.array(ids), starts=mx.array(starts), logits=mx.concatenate(logits))
        mx.save_safetensors(str(file), tensors)
        results = [agreement(args, name.strip(), file) for name in args.modes.split(",")]
    failures = [failure for result in results for failure in problems(result, positions, perplexity)]
    if failures:
        sys.exit("\n".join(failures))


def tokenised(args):
    """Token ids of every text, each int32."""
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    template = (args.model / "chat_template.jinja").read_text()
    head, *items = [json.loads(line) for line in args.exam.read_text().splitlines()]
    sequences = []
    for item in chosen(items, args.long):
        if sum(map(len, sequences)) >= args.positions and item["skill"] != LONG:
            continue
        text = rendered(item, head["filler"], template)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        sequences.append(np.array(ids, np.int32))
    if sum(map(len, sequences)) < args.positions:
        sys.exit(f"{args.exam}: fewer than {args.positions} positions")
    return sequences


def chosen(items, long):
    """The first `long` long items, then a round of one item a skill after the other."""
    by_skill = {}
    for item in items:
        by_skill.setdefault(item["skill"], []).append(item)
    yield from by_skill.pop(LONG, [])[:long]
    for round_of_items in itertools.zip_longest(*by_skill.values()):
        yield from filter(None, round_of_items)


def rendered(item, filler, template):
    """The prompt and, where one answer is right, that answer."""
    messages = [message | {"content": content(message["content"], filler)} for message in item["messages"]]
    expect = item.get("expect")
    more = {}
    match item["judge"]:
        case "format":
            more = dict(add_generation_prompt=True, enable_thinking=item["thinking"])
        case "tool_calls":
            calls = [{"type": "function", "function": call} for call in expect]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        case "json":
            text = json.dumps(expect, ensure_ascii=False, separators=(",", ":"))
            messages.append({"role": "assistant", "content": text})
        case "exact":
            messages.append({"role": "assistant", "content": expect})
        case judge:
            sys.exit(f"{item['id']}: unknown judge {judge!r}")
    texts, _ = render_jinja_template([messages], tools=item.get("tools"), chat_template=template, **more)
    return texts[0]


def content(value, filler):
    if isinstance(value, str):
        return value
    lines = [[line] if isinstance(line, str) else filler[line[0] : line[1]] for line in value]
    return "\n".join(itertools.chain.from_iterable(lines))


def perplexity_of(sequences, logits):
    """Over every token that has one before it, in float64."""
    total, count = 0.0, 0
    for ids, rows in zip(sequences, logits):
        rows = np.array(rows, np.float64)[:-1]
        top = rows.max(-1)
        log_sum = top + np.log(np.exp(rows - top[:, None]).sum(-1))
        total += (log_sum - rows[np.arange(len(ids) - 1), ids[1:]]).sum()
        count += len(ids) - 1
    return math.exp(total / count)


def agreement(args, name, file):
    """What `calla eval agree` says of a mode."""
    command = [args.calla, "eval", "agree", "--model", str(args.model), "--against", str(file), "--json"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CALLA_")}
    if "CALLA_SIMD" in os.environ:
        environment["CALLA_SIMD"] = os.environ["CALLA_SIMD"]
    done = subprocess.run([*command, *MODES[name]], stdout=subprocess.PIPE, env=environment)
    if done.returncode != 0:
        sys.exit(f"{name}: calla failed")
    result = json.loads(done.stdout) | {"mode": name}
    print(
        f"{name}: top token {result['top1_agreement']:.5f}, perplexity {result['perplexity']:.5f} "
        f"({result['perplexity_rel_error']:.1e} off), KL {result['kl_mean']:.1e}, "
        f"logits {result['rel_error']:.1e} off",
        flush=True,
    )
    return result


def problems(result, positions, perplexity):
    """What is not as it should be."""
    mode = result["mode"]
    if result["positions"] != positions:
        yield f"{mode}: compared {result['positions']} of {positions} positions"
    if abs(result["perplexity_theirs"] / perplexity - 1) > 1e-6:
        yield f"{mode}: mlx-lm's logits give calla {result['perplexity_theirs']}, not {perplexity}"
    if result["top1_agreement"] < TOP1_AGREEMENT_MIN:
        yield f"{mode}: top tokens agree at {result['top1_agreement']}, not {TOP1_AGREEMENT_MIN}"
    if result["perplexity_rel_error"] > PERPLEXITY_REL_ERROR_MAX:
        yield f"{mode}: perplexity is {result['perplexity_rel_error']} off, over {PERPLEXITY_REL_ERROR_MAX}"


if __name__ == "__main__":
    main()
