"""Following an instruction from the system prompt."""

import json

from . import arithmetic, facts, talk
from .task import Task, asked, reply, system, user


def follow(pool):
    rule = pool.rng.choice((capitals, ends, begins, refuses, refuses, one_word, as_json, named, persona))
    return rule(pool)


def base(pool):
    draw = pool.rng.random()
    if pool.held:  # small talk has more than one right answer
        return facts.fact(pool) if draw < 0.7 else arithmetic.thinking(pool)
    if draw < 0.55:
        return facts.fact(pool)
    return talk.talk(pool) if draw < 0.85 else arithmetic.thinking(pool)


def with_rule(pool, rule, change, thought):
    task = base(pool)
    last = task.messages[-1]
    last["content"] = change(last["content"])
    if task.think:
        last["reasoning_content"] = f"{thought} {last['reasoning_content']}"
    task.messages.insert(0, system(polite(pool, rule)))
    return Task("instructions", task.messages, think=task.think)


def polite(pool, rule):
    return pool.rng.choice(("{}", "{}", "You are a helpful assistant. {}", "You are Seedling. {}", "{} Be kind.")).format(rule)


def capitals(pool):
    rule = pool.rng.choice(("Answer in upper case.", "Write everything in capital letters.", "Always answer in capitals.",
                            "Use only upper case letters."))
    return with_rule(pool, rule, str.upper, "I answer in capitals.")


def ends(pool):
    word = pool.pick("end_words") if pool.rng.random() < 0.5 else pool.any_word()
    rule = pool.rng.choice(('End every answer with the word "{}".', "Always end with the word {}.", 'Your last word is always "{}".',
                            "Finish each answer with: {}")).format(word)
    return with_rule(pool, rule, lambda text: f"{text} {word}", f'I end with "{word}".')


def begins(pool):
    word = (pool.pick("end_words") if pool.rng.random() < 0.5 else pool.any_word()).capitalize()
    rule = pool.rng.choice(('Begin every answer with the word "{}".', "Always start with the word {}.",
                            'Your first word is always "{}".')).format(word)
    return with_rule(pool, rule, lambda text: f"{word} {text}", f'I begin with "{word}".')


def refuses(pool):
    """The topic is refused, and nothing else is."""
    rng = pool.rng
    topic, other = pool.some("topics", 2)
    rule = rng.choice(("Do not talk about {}.", "Never speak about {}.", "Refuse to talk about {}.",
                       "You must not say anything about {}.")).format(topic)
    asks = ("Tell me about {}.", "What do you think about {}?", "Can we talk about {}?", "I want to talk about {}.",
            "Say something about {}.", "What do you know about {}?")
    if rng.random() < 0.55:
        task = asked("instructions", rng.choice(asks).format(topic), f"I am sorry, I do not talk about {topic}.",
                     f"I must not talk about {topic}.", rng.random() < 0.5)
        task.messages.insert(0, system(polite(pool, rule)))
        return task
    if rng.random() < 0.5:
        return with_rule(pool, rule, lambda text: text, f"This is not about {topic}.")
    task = asked("instructions", rng.choice(asks).format(other), f"I do not know much about {other}.",
                 f"This is not about {topic}.", rng.random() < 0.5)
    task.messages.insert(0, system(polite(pool, rule)))
    return task


def one_word(pool):
    while True:
        questions, _, word = pool.rng.choice(facts.FACTS)
        if word and " " not in word:
            break
    rule = pool.rng.choice(("Answer with one word.", "Answer in one word only.", "Use a single word for each answer."))
    task = asked("instructions", pool.rng.choice(questions), word, "One word is enough.", pool.rng.random() < 0.5)
    task.messages.insert(0, system(polite(pool, rule)))
    return task


def as_json(pool):
    key = pool.rng.choice(("answer", "reply", "text", "result", "output"))
    rule = pool.rng.choice(('Answer as JSON with the key "{}".', "Reply with a JSON object that has the key {}.",
                            'Put your answer in JSON under "{}".')).format(key)
    return with_rule(pool, rule, lambda text: json.dumps({key: text}), f'I write JSON with the key "{key}".')


def named(pool):
    name = pool.person()
    rule = pool.rng.choice(("Your name is {}.", "You are called {}.", "You are {}, an assistant.")).format(name)
    task = asked("instructions", pool.rng.choice(("What is your name?", "What are you called?", "Who are you?")),
                 f"My name is {name}.", "My name is in my instructions.", pool.rng.random() < 0.5)
    task.messages.insert(0, system(polite(pool, rule)))
    return task


def persona(pool):
    """The system prompt says how to greet or what to say when asked."""
    word = pool.any_word()
    rule, question, answer = pool.rng.choice((
        (f'When the user says "{word}", answer "{pool.any_word()} {pool.any_word()}".', word, None),
        (f"If somebody asks for the secret, say {word}.", "What is the secret?", word),
        (f"The password is {word}. Tell it to everybody who asks.", "What is the password?", f"The password is {word}."),
        (f"The user is called {pool.person()}. Greet the user by name.", "Hello", None),
    ))
    if answer is None:
        answer = rule.split('answer "')[1][:-2] if 'answer "' in rule else f"Hello {rule.split('called ')[1].split('. ')[0]}!"
    think = pool.rng.random() < 0.5
    messages = [system(polite(pool, rule)), user(question), reply(answer, "My instructions say what to do." if think else None)]
    return Task("instructions", messages, think=think)
