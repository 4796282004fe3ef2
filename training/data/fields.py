"""From a sentence to JSON."""

import json

from .task import Task, listed, reply, system, user

# attribute: (names of the key, how a sentence says it of someone, how the value is drawn)
ABOUT = {
    "age": (("age", "years"), ("is {} years old", "is {}"), lambda pool: pool.rng.randint(3, 98)),
    "city": (("city", "town", "home", "place"), ("lives in {}", "comes from {}", "has a flat in {}"), lambda pool: pool.city()),
    "job": (("job", "work", "profession"), ("works as a {}", "is a {}"), lambda pool: pool.pick("jobs")),
    "pet": (("pet", "animal"), ("has a {}", "owns a {}"), lambda pool: pool.pick("pets")),
    "colour": (("colour", "favourite_colour", "color"), ("likes the colour {}", "always wears {}"), lambda pool: pool.pick("colours")),
    "food": (("food", "dish", "favourite_food"), ("likes to eat {}", "cooks {} every week"), lambda pool: pool.pick("foods")),
    "language": (("language", "speaks"), ("speaks {}", "is learning {}"), lambda pool: pool.pick("languages")),
    "phone": (("phone", "phone_number"), ("has the phone number {}", "can be called at {}"),
              lambda pool: "".join(pool.rng.choices("0123456789", k=pool.rng.randint(5, 7)))),
    "born": (("born", "birth_year", "year"), ("was born in {}",), lambda pool: pool.rng.randint(1930, 2020)),
    "day": (("day", "free_day", "weekday"), ("is free on {}", "comes on {}"), lambda pool: pool.pick("weekdays")),
    "children": (("children", "kids"), ("has {} children",), lambda pool: pool.rng.randint(2, 7)),
}
ORDER = {
    "product": (("product", "item", "article"), None, lambda pool: pool.pick("objects")),
    "quantity": (("quantity", "count", "amount"), None, lambda pool: pool.rng.randint(2, 99)),
    "colour": (("colour", "color"), None, lambda pool: pool.pick("colours")),
    "customer": (("customer", "name", "buyer"), None, lambda pool: pool.person()),
    "price": (("price", "total", "cost"), None, lambda pool: pool.rng.choice((pool.rng.randint(1, 900), pool.rng.randint(10, 9999) / 100))),
    "city": (("city", "destination", "place"), None, lambda pool: pool.city()),
    "date": (("date", "day", "delivery"), None, lambda pool: f"{pool.rng.randint(1, 28)} {pool.pick('months')}"),
}
ORDERED = (
    "{customer} ordered {quantity} {colour} {product}s for {price} euros, to be sent to {city} on {date}.",
    "On {date} we send {quantity} {colour} {product}s to {customer} in {city}. The price is {price} euros.",
    "Order from {customer} in {city}: {quantity} {product}s, colour {colour}, {price} euros, delivery on {date}.",
)
REQUEST = (
    "Extract {keys} as JSON: {text}",
    "Turn this into JSON with the keys {keys}: {text}",
    "Read the text and give me a JSON object with {keys}.\n{text}",
    "{text}\n\nWrite {keys} as JSON.",
    "Return JSON with the fields {keys}.\n\n{text}",
)
SYSTEM = ("You turn sentences into JSON with the keys {keys}.", "Answer only with a JSON object. Its keys are {keys}.")


def extract(pool):
    text, values = order(pool) if pool.rng.random() < 0.35 else person(pool)
    rng = pool.rng
    keys = rng.sample(list(values), rng.randint(min(2, len(values)), len(values)))
    if rng.random() < 0.1:
        values["email"] = None
        keys.insert(rng.randint(0, len(keys)), "email")
    answer = json.dumps({key: values[key] for key in keys}, ensure_ascii=False)
    named = listed([f'"{k}"' for k in keys] if rng.random() < 0.2 else keys)
    think = rng.random() < 0.4
    if rng.random() < 0.25:
        messages = [system(rng.choice(SYSTEM).format(keys=named)), user(text)]
    else:
        messages = [user(rng.choice(REQUEST).format(keys=named, text=text))]
    messages.append(reply(answer, f"The keys are {named}." if think else None))
    return Task("json", messages, think=think, judge="json", expect=json.loads(answer))


def person(pool):
    rng = pool.rng
    name = pool.person()
    chosen = rng.sample(list(ABOUT), rng.randint(1, 4))
    said, values = [], {"name": name}
    for attribute in chosen:
        keys, phrases, draw = ABOUT[attribute]
        value = draw(pool)
        values[rng.choice(keys)] = value
        said.append(rng.choice(phrases).format(value))
    if rng.random() < 0.6:
        return f"{name} {listed(said)}.", values
    return " ".join([f"{name} {said[0]}."] + [f"{name} {part}." for part in said[1:]]), values


def order(pool):
    rng = pool.rng
    drawn = {attribute: draw(pool) for attribute, (_, _, draw) in ORDER.items()}
    text = rng.choice(ORDERED).format(**drawn)
    return text, {rng.choice(ORDER[a][0]): value for a, value in drawn.items()}
