"""Writes the held-out exam: python training/make_exam.py [OUT], by default models/seedling/exam.jsonl

Other seed, other names, other words and nouns than the training draws from (data/task.py).

Format, one JSON object a line. The first line holds shared text:

    {"filler": ["sentence", ...]}

Every other line is one item:

    id        "copying-07"
    skill     the row of the result table
    messages  as in a chat request. Where `content` is an array it is lines to be joined with "\\n":
              a string is a line, a pair [a, b] stands for the filler sentences a to b - 1, a line each
    tools     as in a chat request; absent: none
    thinking  true or false: the template's enable_thinking
    max_tokens    enough for any right reply, thought included
    judge     how to compare, with `expect`:
      "exact"       the content, trimmed, equals the string, and no tool is called
      "json"        the content parses to an equal JSON value, and no tool is called; numbers
                    compare as numbers
      "tool_calls"  the calls equal the list of {"name", "arguments"}, in order; arguments compare as
                    JSON values, or as text where one side is a string
      "format"      no `expect`: the reply ended with a stop token, is not empty, and after </think>
                    neither <think> nor </think> appears; the thought was closed; there is none
                    where thinking is off
    Every item of another judge must meet "format" as well, where a tool call counts as content.
"""

import json
import random
import sys
from pathlib import Path

from data import arithmetic, facts, fields, letters, orders, recall, talk, tools
from data.mix import between, framed
from data.task import Pool
from family import SEEDLING
from render import parts, unmarked

SEED = 2027
ITEMS = 50
RECALL_TOKENS = 1000, 4096  # prompts of the two recall skills: at most, at least
FILLER_SENTENCES = 202
BYTES_MAX = 400_000


def main():
    from tokenizers import Tokenizer

    out = Path(sys.argv[1]) if len(sys.argv) > 1 else SEEDLING / "exam.jsonl"
    from fetch_prose import BUILD

    tokenizer = Tokenizer.from_file(str(BUILD / "tokenizer.json"))
    pool = Pool(random.Random(SEED), held=True)
    shared = [recall.filler(pool) for _ in range(FILLER_SENTENCES)]
    lines = [{"filler": shared}]
    for skill, draw in SKILLS.items():
        seen = set()
        while len(seen) < ITEMS:
            item = made(skill, draw(pool), len(seen), tokenizer)
            key = json.dumps([item["messages"], item.get("tools"), item["thinking"]]) if item else None
            if item and key not in seen:
                seen.add(key)
                lines.append(item)
    for number in range(ITEMS):
        lines.append(needle(pool, shared, number, tokenizer))
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    out.write_text(text)
    print(f"{out}: {len(lines) - 1} items, {len(text.encode())} bytes")
    if len(text.encode()) > BYTES_MAX:
        sys.exit(f"over {BYTES_MAX} bytes")


def thinking(make, on):
    """Draws until a task has thinking on or off."""

    def draw(pool):
        while (task := framed(pool, make(pool))).think != on:
            pass
        return task

    return draw


def any_of(*makes):
    return lambda pool: framed(pool, pool.rng.choice(makes)(pool))


SKILLS = {
    "copying": any_of(letters.copy),
    "recall": any_of(recall.short, lambda pool: recall.profile(pool, lambda: between(pool))),
    "facts": any_of(facts.fact),
    "arithmetic": any_of(arithmetic.thinking),
    "arithmetic_direct": any_of(arithmetic.direct),
    "tools": any_of(tools.call, tools.call, tools.none),
    "tools_result": any_of(tools.use),
    "json": any_of(fields.extract),
    "reversing": thinking(letters.reverse, True),
    "capitals": thinking(letters.upper, True),
    "spelling": any_of(letters.spell),
    "counting": thinking(letters.count, True),
    "sorting": any_of(letters.sort),
    "instructions": any_of(orders.follow),
    "format": any_of(talk.talk, facts.unknown, orders.follow, arithmetic.shown, fields.extract, letters.copy),
}


def made(skill, task, number, tokenizer):
    """One item, or None when its prompt is too long."""
    *prompt, last = task.messages
    pairs = parts(task)
    given = sum(len(tokenizer.encode(text).ids) for text, _ in pairs[:-1])
    if given > RECALL_TOKENS[0]:
        return None
    judge = "format" if skill == "format" else task.judge
    expect = unmarked(last["content"]) if task.expect is None else task.expect
    return item(skill, number, prompt, task.tools, task.think, judge, expect, pairs[-1][0], tokenizer)


def item(skill, number, prompt, tools, think, judge, expect, answer, tokenizer):
    record = dict(id=f"{skill}-{number:02}", skill=skill, messages=prompt)
    if tools:
        record["tools"] = tools
    tokens = len(tokenizer.encode(unmarked(answer)).ids)
    record |= dict(thinking=think, max_tokens=2 * tokens + 64, judge=judge)
    if judge != "format":
        record["expect"] = expect
    return record


def needle(pool, shared, number, tokenizer):
    """A line in the shared filler, at a depth that moves evenly from item to item."""
    rng = pool.rng
    what, of = rng.choice(recall.RELATIONS)
    who, code = recall.who(pool), pool.code()
    line = recall.STATED[0].format(what=what, of=of, who=who, code=code)
    count = len(shared)
    depth = round((number + 0.5) / ITEMS * count)
    opening = rng.choice(recall.OPENING)
    question = rng.choice(recall.ASKED[:4]).format(what=what, of=of, who=who)
    body = "\n".join([opening, *shared[:depth], line, *shared[depth:]])
    tokens = len(tokenizer.encode(body).ids)
    if not RECALL_TOKENS[1] <= tokens <= RECALL_TOKENS[1] + 300:
        sys.exit(f"the long text has {tokens} tokens, not {RECALL_TOKENS[1]}: change FILLER_SENTENCES")
    content = [opening, [0, depth], line, [depth, count]]
    prompt = [{"role": "system", "content": content}, {"role": "user", "content": question}]
    answer = f"The {what} {of} {who} is {code}."
    return item("recall_4096", number, prompt, None, number % 2 == 0, "exact", answer, answer, tokenizer)


if __name__ == "__main__":
    main()
