"""One training or exam dialogue, and the drawing of words and names for it."""

import json
import string
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from . import lists

WORDS = Path(__file__).resolve().parents[1] / "build/words.txt"
PROSE = Path(__file__).resolve().parents[1] / "build/prose.txt"
TOKENIZER = Path(__file__).resolve().parents[1] / "build/tokenizer.json"
HELD_EVERY = 7  # one entry of each list in this many is kept for the exam
# In training these lists are only examples: so often any other word stands in for an entry. A short
# list that is never left is learned by heart, and an entry held out of it is then never copied.
OPEN_SHARE = 0.6
OPEN = {"people", "cities", "colours", "objects", "adjectives", "jobs", "pets", "foods", "languages", "weekdays",
        "months", "tool_nouns", "info_nouns", "verbs", "info_verbs", "fields", "end_words"}
CLOSED = {"weekdays", "months"}  # there are no others to hold out

# Text between these two is written letter by letter, one token each, as a speller would.
SPELL, SPELT = "\ue000", "\ue001"


@dataclass
class Task:
    skill: str
    messages: list  # ends with the assistant's reply; replies after the last question are learned
    tools: list | None = None
    think: bool = False
    judge: str = "exact"  # how the exam compares, see make_exam.py
    expect: object = None  # what with; None: the content of the last reply


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def reply(text, thought=None):
    message = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    return message


def asked(skill, question, answer, thought, think, **more):
    """The plainest task: one question, one answer. The thought is used when thinking is on."""
    messages = [user(question), reply(answer, thought if think else None)]
    return Task(skill, messages, think=think, **more)


class Pool:
    """Draws from the lists: from one part in training, from the other part in the exam. `opened`:
    also from all words, which needs the tokenizer; never in the exam."""

    def __init__(self, rng, held=False, opened=True):
        self.rng = rng
        self.held = held
        self.opened = opened and not held

    def pick(self, name):
        entries = part(name, self.held)
        if not self.opened or name not in OPEN or self.rng.random() > OPEN_SHARE:
            return self.rng.choice(entries)
        return self.stranger(capital=entries[0][0].isupper())

    def some(self, name, count):
        return self.rng.sample(part(name, self.held), count)

    def word(self):
        return self.rng.choice(common_words(self.held))

    def invented(self, parts=None):
        """A word nobody has used, such as "talumir"."""
        rng = self.rng
        text = "".join(
            rng.choice("bdfghjklmnprstvwz") + rng.choice("aeiou") + rng.choice(["", "", "n", "r", "l", "s"])
            for _ in range(parts or rng.randint(2, 3))
        )
        return text

    def any_word(self):
        if self.opened and self.rng.random() < 0.3:
            return self.joined()
        return self.word() if self.rng.random() < 0.7 else self.invented()

    def joined(self, capital=False):
        """Two pieces of the vocabulary: so each one is copied sometimes. A piece that is never a
        target is never written, however plainly it stands in the prompt."""
        small, large, ends = pieces()
        while True:
            start = self.rng.choice(large if capital and self.rng.random() < 0.5 else small)
            word = start + self.rng.choice(ends)
            word = word.capitalize() if capital else word
            if len(word) <= 12 and word.lower() not in kept():
                return word

    def stranger(self, capital=False):
        """For training: a word that may stand in for an entry of a list."""
        draw = self.rng.random()
        if 0.4 <= draw < 0.8:
            return self.joined(capital)
        word = self.word() if draw < 0.4 else self.invented()
        return word.capitalize() if capital else word

    def person(self):
        return self.pick("people") if self.rng.random() < 0.6 else self.unheard()

    def city(self):
        return self.pick("cities") if self.rng.random() < 0.7 else self.unheard()

    def unheard(self):
        """A name nobody has."""
        if self.opened and self.rng.random() < 0.5:
            return self.joined(capital=True)
        return self.invented().capitalize()

    def code(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.5:
            return str(rng.randint(100, 99999))
        if kind < 0.75:
            return "".join(rng.choices(string.ascii_uppercase + string.digits, k=rng.randint(3, 6)))
        if kind < 0.9:
            return f"{self.pick('colours')} {self.pick('objects')}"
        return self.invented()

    def distinct(self, draw, count):
        """`count` different draws, in the order drawn."""
        found = {}
        while len(found) < count:
            found[draw()] = None
        return list(found)


@cache
def part(name, held):
    entries = getattr(lists, name)
    if name in CLOSED:
        return entries
    return [e for i, e in enumerate(entries) if (i % HELD_EVERY == HELD_EVERY - 1) == held]


@cache
def common_words(held):
    words = WORDS.read_text().split()
    return [w for i, w in enumerate(words) if (i % HELD_EVERY == HELD_EVERY - 1) == held]


@cache
def pieces():
    """The vocabulary's pieces that begin a lower-case word, begin a capitalised one, or go on."""
    vocabulary = sorted(json.loads(TOKENIZER.read_text())["model"]["vocab"])
    plain = [p for p in vocabulary if p.lstrip("Ġ").isascii() and p.lstrip("Ġ").isalpha()]
    small = [p for p in plain if p.lstrip("Ġ").islower()]
    starts = [p[1:] for p in small if p[0] == "Ġ"]
    capital = {p.lstrip("Ġ") for p in plain if p.lstrip("Ġ").istitle()}
    return starts, sorted(capital), [p for p in small if p[0] != "Ġ" and len(p) <= 4]


@cache
def kept():
    """Every word that only the exam may use."""
    words = set(common_words(True))
    for name in OPEN - CLOSED:
        words.update(entry.lower() for entry in part(name, True))
    return words


@cache
def prose(held=False):
    lines = PROSE.read_text().splitlines()
    return [line for i, line in enumerate(lines) if (i % 50 == 49) == held]


def article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def listed(items, word="and"):
    """a; a and b; a, b and c."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + f" {word} {items[-1]}"
