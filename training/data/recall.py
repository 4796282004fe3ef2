"""Finding something said earlier: in a list, in a long text, in earlier turns."""

from .task import Task, listed, prose, reply, system, user

# What the thing is called, and what it belongs to.
RELATIONS = (("code", "for"), ("password", "of"), ("number", "of"), ("key", "for"), ("room", "of"),
             ("locker", "of"), ("secret word", "of"), ("badge", "of"), ("seat", "of"), ("PIN", "for"),
             ("phone number", "of"), ("label", "of"))
STATED = ("The {what} {of} {who} is {code}.", "{who}: {what} {code}", "{who} has the {what} {code}.",
          "Remember: the {what} {of} {who} is {code}.", "{who} - {code}")
ASKED = ("What is the {what} {of} {who}?", "Tell me the {what} {of} {who}.", "Which {what} does {who} have?",
         "I need the {what} {of} {who}.", "{who}?", "Do you remember the {what} {of} {who}?")
ALL_ASKED = ("Tell me the {what} {of} {who}.", "I need the {what} {of} {who}.")
OPENING = ("Here is what you must know.", "Read the following text.", "These are my notes.",
           "You are the keeper of this list.", "Use only these notes to answer.")
DENSE_CHARS_PER_TOKEN = 2.3
NOTED = ("I have noted it.", "Noted.", "Thank you, I will remember that.", "All right.")


def short(pool):
    """A few lines to about 900 tokens."""
    return document(pool, "recall", pool.rng.choice((60, 120, 200, 350, 500, 700, 850)))


def medium(pool):
    return document(pool, "recall", pool.rng.randint(850, 950))


def long(pool, tokens=None):
    return document(pool, "recall_4096", tokens or pool.rng.choice((1500, 2200, 3000, 4000, 4200, 4350)))


def document(pool, skill, tokens, questions=None):
    """A document of about so many tokens with one line for each name, then a question."""
    rng = pool.rng
    what, of = rng.choice(RELATIONS)
    shape = rng.choice(STATED)
    dense = rng.random() < 0.4
    count = max(2, tokens // 10) if dense else rng.randint(1, 8) if tokens > 150 else rng.randint(1, 3)
    names = pool.distinct(lambda: who(pool), count)
    codes = pool.distinct(pool.code, count)
    lines = [shape.format(what=what, of=of, who=n, code=c) for n, c in zip(names, codes)]
    lines = [line[0].upper() + line[1:] for line in lines]
    if dense:
        while len(lines) > 2 and sum(map(len, lines)) > DENSE_CHARS_PER_TOKEN * tokens:
            lines.pop()
        count = len(lines)
    if not dense:
        lines = buried(pool, lines, tokens)
    body = "\n".join(lines) if rng.random() < 0.7 or dense else " ".join(lines)
    several = questions or (rng.randint(2, min(6, count)) if count > 1 and rng.random() < (0.6 if tokens > 1000 else 0.15) else 1)
    if several == 1:
        pick = rng.randrange(count)
        question = rng.choice(ASKED).format(what=what, of=of, who=names[pick])
        answer = f"The {what} {of} {names[pick]} is {codes[pick]}."
        if rng.random() < 0.05 and tokens < 1000:
            stranger = who(pool)
            if stranger not in names:
                question = rng.choice(ASKED[:4]).format(what=what, of=of, who=stranger)
                answer = f"I was not told the {what} {of} {stranger}."
    else:
        picks = rng.sample(range(count), several)
        question = rng.choice(ALL_ASKED).format(what=what, of=of, who=listed([names[i] for i in picks]))
        answer = "\n".join(f"{names[i]}: {codes[i]}" for i in picks)
    think = rng.random() < 0.4
    last = reply(answer, "I look it up in what I was told." if think else None)
    return Task(skill, placed(rng, body, question) + [last], think=think)


def placed(rng, body, question):
    """The document in the system prompt, in an earlier turn, or above the question."""
    place = rng.random()
    opening = rng.choice(OPENING)
    if place < 0.45:
        return [system(f"{opening}\n{body}"), user(question)]
    if place < 0.7:
        return [user(f"{opening}\n{body}"), reply(rng.choice(NOTED)), user(question)]
    return [user(f"{opening}\n{body}\n\n{question}")]


def buried(pool, lines, tokens):
    """The lines at random places of a text of about so many tokens."""
    rng = pool.rng
    text, size = [], sum(map(len, lines)) / 3.2
    natural = rng.random() < 0.5 and not pool.held
    while size < tokens:
        text.append(rng.choice(prose()) if natural else filler(pool))
        size += len(text[-1]) / (3.15 if natural else 4.8)
    for line in lines:
        text.insert(rng.randint(0, len(text)), line)
    return text


def who(pool):
    draw = pool.rng.random()
    if draw < 0.4:
        return pool.person()
    if draw < 0.6:
        return pool.city()
    if draw < 0.8:
        return f"the {pool.pick('adjectives')} {pool.pick('objects')}"
    return pool.invented().capitalize()


def filler(pool):
    """A sentence about nothing."""
    rng = pool.rng
    name = pool.person() if rng.random() < 0.5 else f"the {pool.pick('jobs')}"
    thing = f"the {pool.pick('adjectives')} {pool.pick('objects')}"
    text = f"{name} {pool.pick('past_verbs')} {thing} {pool.pick('places')}"
    if rng.random() < 0.5:
        text += f" {pool.pick('times')}"
    if rng.random() < 0.3:
        text += f" and {pool.pick('past_verbs')} {pool.pick('colours')} {pool.pick('foods')}"
    return text[0].upper() + text[1:] + "."


# Said about oneself: what, how it is said, how it is asked, how it is answered.
PROFILE = (
    ("person", "My name is {}.", "What is my name?", "Your name is {}."),
    ("person", "I am {}.", "Who am I?", "You are {}."),
    ("city", "I live in {}.", "Where do I live?", "You live in {}."),
    ("colours", "My favourite colour is {}.", "What is my favourite colour?", "Your favourite colour is {}."),
    ("jobs", "I work as a {}.", "What is my job?", "You work as a {}."),
    ("foods", "I like {}.", "What do I like to eat?", "You like {}."),
    ("person", "My best friend is {}.", "Who is my best friend?", "Your best friend is {}."),
    ("pets", "I have a {}.", "What pet do I have?", "You have a {}."),
    ("person", "My sister is called {}.", "What is my sister called?", "Your sister is called {}."),
    ("number", "I am {} years old.", "How old am I?", "You are {} years old."),
    ("weekdays", "My exam is on {}.", "When is my exam?", "Your exam is on {}."),
    ("city", "I was born in {}.", "Where was I born?", "You were born in {}."),
)
HELLO = {"My name is {}.": "Nice to meet you, {}!", "I am {}.": "Hello {}, nice to meet you!"}


def profile(pool, between):
    """Facts told over several turns, other talk between them; `between()` gives a pair of turns."""
    rng = pool.rng
    told = rng.sample(PROFILE, rng.randint(1, 4))
    turns, answers = [], []
    for kind, said, question, answer in told:
        value = drawn(pool, kind)
        back = HELLO.get(said, rng.choice(NOTED)).format(value)
        turns.append([user(said.format(value)), reply(back)])
        answers.append((question, answer.format(value)))
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        turns.insert(rng.randint(1, len(turns)), between())
    question, answer = rng.choice(answers)
    think = rng.random() < 0.5
    last = [user(question), reply(answer, "The user told me this before." if think else None)]
    return Task("memory", sum(turns, []) + last, think=think)


def drawn(pool, kind):
    if kind == "number":
        return pool.rng.randint(5, 99)
    return getattr(pool, kind)() if kind in ("person", "city") else pool.pick(kind)
