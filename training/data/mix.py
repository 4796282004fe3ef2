"""The mixture: which dialogues are drawn, and how often."""

import random

from . import arithmetic, facts, fields, letters, orders, recall, talk, tools
from .task import Pool, Task, prose, system

# (generator, weight by number of dialogues); the shares of tokens differ, stream.py prints them
MIX = (
    (arithmetic.thinking, 6),
    (arithmetic.direct, 9),
    (arithmetic.shown, 1.5),
    (letters.copy, 14),
    (letters.reverse, 12),
    (letters.upper, 14),
    (letters.spell, 3),
    (letters.length, 2),
    (letters.count, 4),
    (letters.sort, 9),
    (facts.fact, 6),
    (facts.unknown, 1.5),
    (talk.talk, 5),
    (recall.short, 12),
    (recall.medium, 1),
    (lambda pool: recall.profile(pool, lambda: between(pool)), 5),
    (fields.extract, 17),
    (tools.call, 34),
    (tools.use, 7),
    (tools.none, 9),
    (orders.follow, 9),
    (lambda pool: prose_task(pool), 4),
)
LONG = ((lambda pool: recall.long(pool), 1.0),)

PLAIN = ("You are a helpful assistant.", "You are Seedling, a small assistant.", "Answer briefly.", "Be kind and brief.",
         "You answer questions.", "You are an assistant.")
# Skills that may follow other turns or a plain system prompt without changing their answer.
FREE = {"arithmetic", "arithmetic_direct", "copying", "reversing", "capitals", "sorting", "counting", "facts", "talk",
        "spelling", "json"}


class Mixture:
    """An endless, seeded stream of dialogues."""

    def __init__(self, seed, held=False, opened=True):
        self.pool = Pool(random.Random(seed), held, opened)

    def draw(self, table=MIX):
        make = self.pool.rng.choices([m for m, _ in table], [w for _, w in table])[0]
        return framed(self.pool, make(self.pool))


def framed(pool, task):
    """Sometimes earlier turns or a plain system prompt before a task that stands alone."""
    rng = pool.rng
    if task.skill in FREE and task.messages[0]["role"] == "user":
        if rng.random() < 0.2:
            for _ in range(rng.choice((1, 1, 2))):
                task.messages[:0] = between(pool)
        if rng.random() < 0.15:
            task.messages.insert(0, system(rng.choice(PLAIN)))
    return task


def between(pool):
    """A pair of earlier turns, as history shows them: without thoughts."""
    draw = pool.rng.random()
    if draw < 0.4:
        return talk.pair(pool)
    task = facts.fact(pool) if draw < 0.75 else arithmetic.direct(pool) if draw < 0.9 else letters.copy(pool)
    messages = task.messages[-2:]
    messages[-1].pop("reasoning_content", None)
    return messages


def prose_task(pool):
    """Plain text without any frame."""
    text = "\n".join(pool.rng.choice(prose(pool.held)) for _ in range(pool.rng.randint(1, 5)))
    return Task("prose", [text])
