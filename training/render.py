"""From a dialogue to token ids, through the project's chat template and tokenizer."""

import json
from functools import cache

import jinja2.sandbox
import numpy as np

from data.task import SPELL, SPELT
from family import SEEDLING

# Loss weights in percent. A reply counts in full; what the user says teaches a little.
ANSWER, PROMPT, PROMPT_LONG = 100, 10, 2
LONG_PROMPT_TOKENS = 1000
END = "<|im_end|>"


@cache
def template():
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = fail
    return environment.from_string((SEEDLING / "chat_template.jinja").read_text())


def fail(message):
    raise ValueError(message)


def rendered(messages, tools, **more):
    return template().render(messages=messages, tools=tools, **more)


def parts(task):
    """The dialogue as (text, learned) pairs: what is given, then what the model should write, in
    turn. Every reply after the last question is learned, in the form in which it is generated."""
    last = max(i for i, message in enumerate(task.messages) if message["role"] == "user")
    done, pairs = "", []
    for i in range(last + 1, len(task.messages)):
        if task.messages[i]["role"] != "assistant":
            continue
        prompt = rendered(task.messages[:i], task.tools, add_generation_prompt=True, enable_thinking=task.think)
        whole = rendered(task.messages[: i + 1], task.tools).removesuffix("\n")
        if not (prompt.startswith(done) and whole.startswith(prompt) and whole.endswith(END)):
            raise ValueError(f"the template does not extend its own prompt: {prompt!r} {whole!r}")
        pairs += [(prompt[len(done) :], False), (whole[len(prompt) :], True)]
        done = whole
    return pairs


def encoded(task, tokenizer):
    """Token ids and loss weights (percent, of each token as a target): two uint arrays."""
    if task.skill == "prose":
        ids = tokenizer.encode(task.messages[0] + "<|endoftext|>").ids
        weights = [ANSWER] * len(ids)
        weights[0] = 0
    else:
        ids, weights = [], []
        pieces = [(spelled(text, tokenizer), learned) for text, learned in parts(task)]
        given = sum(len(piece) for piece, learned in pieces if not learned)
        prompt = PROMPT if given < LONG_PROMPT_TOKENS else PROMPT_LONG
        for piece, learned in pieces:
            ids += piece
            weights += [ANSWER if learned else prompt] * len(piece)
        weights[0] = 0  # the first token has nothing to be predicted from
    return np.array(ids, np.uint16), np.array(weights, np.uint8)


def spelled(text, tokenizer):
    """Ids of a text; what stands between SPELL and SPELT becomes one token a letter."""
    ids = []
    for i, run in enumerate(text.replace(SPELT, SPELL).split(SPELL)):
        if i % 2 == 0:
            ids += tokenizer.encode(run).ids if run else []
        else:
            for letter in run:
                ids += tokenizer.encode(letter).ids
    return ids


def unmarked(text):
    return text.replace(SPELL, "").replace(SPELT, "")
