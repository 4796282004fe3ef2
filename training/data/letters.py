"""Copying, and what works on letters and short lists: reversing, capitals, spelling, counting,
sorting. When thinking is on, words are spelled out, with numbers where order matters."""

import string

from .task import SPELL, SPELT, asked, prose
from .recall import filler

COPY = ("Repeat exactly: {x}", "Copy this text: {x}", "Say this again: {x}", "Repeat after me: {x}",
        "Please repeat the following text:\n{x}", "Write this again, word for word: {x}", "Echo: {x}",
        "Copy the next line.\n{x}")
REVERSE = ('Write "{x}" backwards.', "Reverse the word {x}.", "Spell {x} backwards.",
           'What is "{x}" written backwards?', "Turn the word {x} around.", "Reverse: {x}")
UPPER = ('Write "{x}" in capital letters.', "Put this in upper case: {x}", "Change {x} to capitals.",
         "Upper case: {x}", "Write this in capitals: {x}")
SPELLING = ("Spell the word {x}.", "How do you spell {x}?", 'Spell "{x}" letter by letter.')
LENGTH = ("How many letters are in the word {x}?", "Count the letters of {x}.", "How long is the word {x}?")
COUNT = ("How many words are in this list: {x}?", "Count the items: {x}", "How many things are listed here? {x}",
         "How many items does this list have: {x}?")
SORT_NUMBERS = ("Sort these numbers: {x}", "Put these numbers in order: {x}", "Sort from small to large: {x}",
                "Arrange in ascending order: {x}")
SORT_WORDS = ("Sort these words: {x}", "Put these words in alphabetical order: {x}", "Sort alphabetically: {x}")


def copy(pool):
    rng, kind = pool.rng, pool.rng.random()
    if kind < 0.3:
        text = " ".join(pool.any_word() for _ in range(rng.randint(1, 10)))
    elif kind < 0.5:
        text = " ".join(pool.invented(rng.randint(1, 4)) for _ in range(rng.randint(1, 8)))
    elif kind < 0.6:
        letters = rng.choice((string.ascii_lowercase, string.digits, string.ascii_uppercase + string.digits))
        text = "".join(rng.choices(letters, k=rng.randint(3, 14)))
    elif kind < 0.7:
        text = " ".join(str(rng.randint(0, 999)) for _ in range(rng.randint(2, 8)))
    elif kind < 0.85 or pool.held:
        text = " ".join(filler(pool) for _ in range(rng.randint(1, 2)))
    else:
        text = rng.choice(prose())[:220].strip()
    question = rng.choice(COPY).format(x=text)
    return asked("copying", question, text, "I repeat the text as it is.", rng.random() < 0.5)


def reverse(pool):
    word = short_word(pool)
    back = word[::-1]
    numbered = [f"{i}{letter}" for i, letter in enumerate(word, start=1)]
    thought = f"{' '.join(numbered)}\nBackwards: {' '.join(reversed(numbered))}"
    question = pool.rng.choice(REVERSE).format(x=word)
    return asked("reversing", question, SPELL + back + SPELT, thought, pool.rng.random() < 0.75)


def upper(pool):
    words = [short_word(pool) for _ in range(pool.rng.choice((1, 1, 1, 2, 3)))]
    thought = "\n".join(f"{w}: {' '.join(w)}" for w in words)
    text = " ".join(words)
    question = pool.rng.choice(UPPER).format(x=text)
    return asked("capitals", question, text.upper(), thought, pool.rng.random() < 0.6)


def spell(pool):
    word = short_word(pool)
    question = pool.rng.choice(SPELLING).format(x=word)
    return asked("spelling", question, "-".join(word), "I say each letter.", pool.rng.random() < 0.3)


def length(pool):
    word = short_word(pool)
    numbered = " ".join(f"{i}{letter}" for i, letter in enumerate(word, start=1))
    question = pool.rng.choice(LENGTH).format(x=word)
    answer = f'The word "{word}" has {len(word)} letters.'
    return asked("counting", question, answer, numbered, True)


def count(pool):
    words = pool.distinct(pool.any_word, pool.rng.randint(2, 9))
    numbered = ", ".join(f"{i} {word}" for i, word in enumerate(words, start=1))
    question = pool.rng.choice(COUNT).format(x=", ".join(words))
    return asked("counting", question, f"There are {len(words)}.", numbered, pool.rng.random() < 0.8)


def sort(pool):
    rng = pool.rng
    if rng.random() < 0.5:
        items = rng.sample(range(100), rng.randint(3, 6))
        question = rng.choice(SORT_NUMBERS).format(x=", ".join(map(str, items)))
        answer = ", ".join(map(str, sorted(items)))
    else:
        words = {}
        while len(words) < rng.choice((3, 4, 5)):
            word = pool.any_word()
            words.setdefault(word[0], word)
        items = list(words.values())
        rng.shuffle(items)
        question = rng.choice(SORT_WORDS).format(x=", ".join(items))
        answer = ", ".join(sorted(items))
    thought = "The first is " + ", then ".join(answer.split(", ")) + "."
    return asked("sorting", question, answer, thought, rng.random() < 0.5)


def short_word(pool):
    while True:
        if pool.opened and pool.rng.random() < 0.2:
            word = pool.joined()
        else:
            word = pool.word() if pool.rng.random() < 0.75 else pool.invented()
        if len(word) <= 9:
            return word
