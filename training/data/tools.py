"""Choosing and calling functions whose schemas the model has never seen.

A schema is put together from a verb, a noun and parameters of a few kinds; each kind has several
names, descriptions and ways to be said. The words of the request are the words of the schema, so
that choosing is matching and filling in is copying.
"""

import json

from . import facts, talk
from .lists import info_verbs as INFO_VERBS
from .task import Task, article, asked, listed, reply, system, user

# kind: (type, names of the parameter, descriptions, how a request says it, how a value is drawn)
KINDS = {
    "city": ("string", ("city", "location", "place", "town", "destination", "where", "area"),
             ("Name of the city", "The city", "Where, a city", "City or town", "The city, such as Rome", "City name"),
             ("in {}", "in {}", "in the city of {}"), lambda pool: pool.city()),
    "person": ("string", ("person", "name", "customer", "user", "guest", "recipient", "client"),
               ("Name of the person", "For whom", "The person", "Who it is for", "The name of a person"),
               ("for {}", "for {}", "for my friend {}"), lambda pool: pool.person()),
    "day": ("string", ("day", "weekday", "date", "when", "on"),
            ("Day of the week", "The day", "On which day", "Weekday, such as Monday"), ("on {}",), lambda pool: pool.pick("weekdays")),
    "time": ("string", ("time", "hour", "start_time", "clock"),
             ("Time of day, such as 9:30", "The time", "At what time"), ("at {}",),
             lambda pool: f"{pool.rng.randint(0, 23)}:{pool.rng.choice(('00', '15', '30', '45'))}"),
    "count": ("integer", ("count", "number", "quantity", "amount", "copies", "how_many"),
              ("How many", "The number of items", "Quantity"), ("with quantity {}", "{} of them", "{} times"),
              lambda pool: pool.rng.randint(2, 60)),
    "colour": ("string", ("colour", "color", "shade", "paint"),
               ("The colour", "Which colour", "Name of a colour"), ("in the colour {}", "coloured {}"),
               lambda pool: pool.pick("colours")),
    "size": ("string", ("size", "format", "class"), ("The size", "How large"),
             ("in size {}", "of size {}"), lambda pool: pool.rng.choice(("small", "medium", "large"))),
    "language": ("string", ("language", "lang", "speech"), ("The language", "Which language"),
                 ("in the language {}", "written in {}"), lambda pool: pool.pick("languages")),
    "budget": ("integer", ("budget", "max_price", "limit", "price"), ("Highest price in euros", "At most so many euros"),
               ("for at most {} euros", "under {} euros"), lambda pool: pool.rng.randint(5, 900)),
    "minutes": ("integer", ("minutes", "duration", "length"), ("Length in minutes", "How many minutes"),
                ("for {} minutes", "lasting {} minutes"), lambda pool: pool.rng.randint(2, 90)),
    "text": ("string", ("text", "message", "note", "content", "body"), ("The text", "What it says", "Words to write"),
             ('with the text "{}"', 'saying "{}"'),
             lambda pool: " ".join(pool.any_word() for _ in range(pool.rng.randint(1, 5)))),
    "code": ("string", ("id", "code", "reference", "key", "serial"), ("The code", "Identifier", "Reference code"),
             ("with code {}", "number {}"), lambda pool: str(pool.rng.randint(100, 99999)) if pool.rng.random() < 0.5
             else pool.rng.choice("ABCDEFGHKLMNPRSTUVWXYZ") + str(pool.rng.randint(10, 999))),
}
# What a description may add about a parameter.
BY = {"city": "in a city", "person": "for a person", "day": "on a day", "time": "at a given time", "count": "any number of times",
      "colour": "in a colour", "size": "in a size", "language": "in a language", "budget": "up to a price",
      "minutes": "for some minutes", "text": "with a text", "code": "by its code"}
DOING = ("{Verb} {a}{by}.", "{Verb}s {a}{by}.", "Use this to {verb} {a}{by}.", "{Verb} {a} for the user.",
         "Function to {verb} {a}{by}.", "{Verb} {a}{by}", "Lets you {verb} {a}{by}.", "{Verb}s {a}{by}. Use it when the user asks.")
WISHES = ("{Verb} {a} {how}.", "Please {verb} {a} {how}.", "Can you {verb} {a} {how}?", "I want to {verb} {a} {how}.",
          "I need you to {verb} {a} {how}.", "{verb} {a} {how}", "Could you please {verb} {a} {how}?")
INFO_WISHES = ("What is the {noun} {how}?", "Tell me the {noun} {how}.", "What's the {noun} {how}?",
               "{Verb} the {noun} {how}.", "I want to know the {noun} {how}.", "How is the {noun} {how}?",
              "What's the {noun} like {how}?", "Can you tell me the {noun} {how}?", "{noun} {how}")
INFO_DOING = ("{Verb} the {noun}{by}.", "{Verb}s the {noun}{by}.", "Gives the {noun}{by}.", "Use this to {verb} the {noun}{by}.",
              "Returns the current {noun}{by}.", "{Verb} the {noun}{by}", "Get the current {noun}{by}.", "The {noun}{by}.")
# What may stand behind the last value without being part of it.
TAILS = ("please", "thanks", "if you can", "again", "once more", "too", "then")
TAILS_OF_TIME = ("today", "today", "now", "right now", "at the moment", "tonight", "this week", "as soon as possible")
# In training: how often a request has such words, and a function a name that no request spells out.
TAILED, UNLIKELY_NAMES = 0.12, 0.2


class Tool:
    """A function: its schema, and the ways to ask for it."""

    def __init__(self, pool, verb=None, noun=None):
        rng = pool.rng
        self.pool = pool
        asking = 0.55 if pool.opened else 0.45
        self.info = rng.random() < asking if verb is None else verb in INFO_VERBS
        self.verb = verb or pool.pick("info_verbs" if self.info else "verbs")
        self.noun = noun or (pool.pick("info_nouns" if self.info else "tool_nouns"))
        kinds = rng.sample(list(KINDS), rng.choice((1, 1, 2, 2, 3, 4)))
        self.names = {kind: rng.choice(KINDS[kind][1]) for kind in kinds}
        if pool.opened:  # a name to be read from the schema; schema() then describes it
            self.names = {k: pool.stranger() if rng.random() < 0.3 else name for k, name in self.names.items()}
        if len(set(self.names.values())) < len(kinds):
            self.names = {kind: kind for kind in kinds}
        self.optional = {kind for kind in kinds[1:] if rng.random() < 0.3}
        style = rng.random()
        self.name = f"{self.verb}_{self.noun}" if style < 0.7 else self.verb + self.noun.capitalize()
        if style > 0.92:
            self.name = self.noun
        if pool.opened and rng.random() < UNLIKELY_NAMES:
            self.name = self.unlikely_name()

    def unlikely_name(self):
        """One that no request spells out, so that it has to be read from the schema."""
        other, noun = self.pool.stranger(), self.noun
        names = f"{other}_{noun}", f"{noun}_{other}", f"{self.verb}_{noun}_{other}", other + noun.capitalize()
        return self.pool.rng.choice(names)

    def schema(self):
        rng = self.pool.rng
        described = rng.random() < 0.85
        properties = {}
        for kind, name in self.names.items():
            form, _, descriptions, _, _ = KINDS[kind]
            properties[name] = {"type": form}
            if described or name not in (kind, "city", "name", "day", "time"):
                properties[name]["description"] = rng.choice(descriptions)
            if kind == "size":
                properties[name]["enum"] = ["small", "medium", "large"]
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.said(rng.choice(INFO_DOING if self.info else DOING)),
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": [n for k, n in self.names.items() if k not in self.optional],
                },
            },
        }

    def wish(self):
        """A request and the arguments it asks for."""
        rng = self.pool.rng
        used = [k for k in self.names if k not in self.optional or rng.random() < 0.5]
        values = {kind: KINDS[kind][4](self.pool) for kind in used}
        said = [rng.choice(KINDS[kind][3]).format(values[kind]) for kind in used]
        rng.shuffle(said)
        text = self.said(rng.choice(INFO_WISHES if self.info else WISHES), " ".join(said))
        if self.pool.opened and rng.random() < TAILED:
            text = self.tailed(text)
        return text, {self.names[kind]: values[kind] for kind in used}

    def tailed(self, text):
        """With words behind the last value that are no argument: "the weather in Berlin today"."""
        tails = TAILS
        if not {"day", "time", "minutes"} & set(self.names):
            tails += TAILS_OF_TIME
        if "person" not in self.names:
            tails += ("for me",)
        tail = self.pool.rng.choice(tails)
        return f"{text[:-1]} {tail}{text[-1]}" if text[-1] in ".?" else f"{text} {tail}"

    def said(self, text, how=""):
        verb, noun = self.verb, self.noun
        a = f"the {noun}" if self.info else article(noun)
        first = next(iter(self.names))
        by = f" {BY[first]}" if self.pool.rng.random() < 0.4 else ""
        return text.format(verb=verb, Verb=verb.capitalize(), noun=noun, a=a, how=how, by=by)

    def aim(self):
        return f"the {self.noun}" if self.info else f"to {self.verb} {article(self.noun)}"


def toolbox(pool, count):
    """Different functions; some share the verb or the noun of the first, so that both must match."""
    tools = {}
    while len(tools) < count:
        first = next(iter(tools.values()), None)
        near = pool.rng.random()
        if first and near < 0.25 and not first.info:
            tool = Tool(pool, noun=first.noun, verb=pool.pick("verbs"))
        elif first and near < 0.5 and not first.info:
            tool = Tool(pool, verb=first.verb, noun=pool.pick("tool_nouns"))
        else:
            tool = Tool(pool)
        if all((tool.verb, tool.noun) != (t.verb, t.noun) for t in tools.values()) and (
            not tool.info or all(tool.noun != t.noun for t in tools.values())
        ):
            tools.setdefault(tool.name, tool)
    return list(tools.values())


def call(pool):
    """One question, one or several calls."""
    rng = pool.rng
    tools = toolbox(pool, rng.choice((1, 2, 3, 3, 4, 5)))
    few = (1, 1, 1, 2, 2) if pool.opened else (1, 1, 1, 1, 2)
    count = rng.choice(few) if rng.random() < 0.9 else 3
    chosen = [rng.choice(tools) for _ in range(count)]
    wishes = [tool.wish() for tool in chosen]
    text = joined([wish for wish, _ in wishes], rng)
    calls = [(tool.name, arguments) for tool, (_, arguments) in zip(chosen, wishes)]
    think = rng.random() < 0.5
    thought = " ".join(f"The user wants {t.aim()}. The function {t.name} fits." for t in chosen)
    skill = "tools" if count == 1 else "tools_several"
    return Task(skill, opening(pool, text) + [calling(calls, thought if think else None)], shown(tools, rng), think,
                "tool_calls", [{"name": name, "arguments": arguments} for name, arguments in calls])


def use(pool):
    """A call, its result, and an answer from it. The model learns both replies."""
    rng = pool.rng
    tools = toolbox(pool, rng.choice((1, 1, 2, 3)))
    tool = rng.choice(tools)
    text, arguments = tool.wish()
    think = rng.random() < 0.5
    thought = f"The user wants {tool.aim()}. The function {tool.name} fits."
    result, answer = outcome(pool, tool)
    messages = opening(pool, text) + [
        calling([(tool.name, arguments)], thought if think else None),
        {"role": "tool", "content": result},
        reply(answer, "The function has answered." if think else None),
    ]
    return Task("tools_result", messages, shown(tools, rng), think)


def none(pool):
    """Functions are there, but none is needed, or none fits."""
    rng = pool.rng
    tools = toolbox(pool, rng.choice((2, 3, 4)))
    if rng.random() < 0.55:
        task = (talk.talk if rng.random() < 0.3 else facts.fact)(pool)
        if task.messages[-1].get("reasoning_content"):
            task.messages[-1]["reasoning_content"] = "No function is needed. " + task.messages[-1]["reasoning_content"]
    else:
        missing, tools = tools[0], tools[1:]
        text, _ = missing.wish()
        task = asked("", text, f"I have no function for that.", f"The user wants {missing.aim()}. No function fits.",
                     rng.random() < 0.5)
    task.skill, task.tools = "tools_none", shown(tools, rng)
    if rng.random() < 0.2:
        task.messages.insert(0, system(rng.choice(SYSTEMS)))
    return task


SYSTEMS = ("You are a helpful assistant.", "You are an assistant with tools.", "Use the functions when they fit.",
           "Be brief.", "You help customers.")


def opening(pool, text):
    messages = [user(text)]
    if pool.rng.random() < 0.12:
        messages = talk.pair(pool) + messages
    if pool.rng.random() < 0.25:
        messages.insert(0, system(pool.rng.choice(SYSTEMS)))
    return messages


def shown(tools, rng):
    tools = rng.sample(tools, len(tools))
    return [tool.schema() for tool in tools]


def calling(calls, thought):
    message = reply("", thought)
    message["tool_calls"] = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    return message


def joined(wishes, rng):
    if len(wishes) == 1:
        return wishes[0]
    second = rng.choice(("Also: {}", "Then: {}", "And: {}", "{}", "Also, {}"))
    ends = [w if w[-1] in ".?" else w + "." for w in wishes]
    return " ".join([ends[0]] + [second.format(w) for w in ends[1:]])


def outcome(pool, tool):
    """What the function returns, and what to say then."""
    rng = pool.rng
    kind = rng.random()
    if kind < 0.12:
        why = rng.choice(("no connection", "not found", "access denied", "nothing is free", "wrong code"))
        return json.dumps({"error": why}), f"That did not work: {why}."
    if kind < 0.22:
        return rng.choice(("ok", "done", json.dumps({"ok": True}), json.dumps({"status": "done"}))), "It is done."
    names = pool.distinct(lambda: pool.pick("fields"), rng.choice((1, 1, 2, 2)))
    if tool.info and rng.random() < 0.7:
        names[0] = tool.noun
    result = {name: result_value(pool, name) for name in names}
    said = listed([f"the {name.replace('_', ' ')} is {value}" for name, value in result.items()])
    return json.dumps(result), said[0].upper() + said[1:] + "."


def result_value(pool, name):
    rng = pool.rng
    if name in ("number", "count", "speed", "level", "total", "temperature", "price", "distance"):
        return rng.randint(1, 999)
    if name in ("name", "owner"):
        return pool.person()
    if name == "place":
        return pool.city()
    return rng.choice((pool.pick("adjectives"), pool.pick("colours"), pool.pick("weekdays"), rng.randint(1, 99), pool.code()))
