"""Addition and subtraction: column by column when thinking, at once when the numbers are small."""

from .task import asked

COLUMNS = ("Ones", "Tens", "Hundreds", "Thousands")

ADD = ("What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} = ?", "Add {a} and {b}.", "How much is {a} + {b}?",
       "What is {a} plus {b}?", "Calculate {a} + {b}.", "What is the sum of {a} and {b}?",
       "Please add {b} to {a}.", "Work out {a} + {b}.", "Can you compute {a} + {b}?")
TAKE = ("What is {a} - {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} = ?", "Subtract {b} from {a}.", "How much is {a} - {b}?",
        "What is {a} minus {b}?", "Calculate {a} - {b}.", "Take {b} away from {a}.",
        "What is the difference of {a} and {b}?", "Work out {a} - {b}.", "Can you compute {a} - {b}?")
MORE = ("{name} has {a} {things}s and gets {b} more. How many {things}s does {name} have now?",
        "There are {a} {things}s in a box and {b} in another. How many {things}s are there in all?")
LESS = ("{name} has {a} {things}s and gives {b} away. How many {things}s are left?",
        "A shop has {a} {things}s and sells {b}. How many {things}s are left?")


def thinking(pool):
    """Up to three digits, worked out in the thought."""
    a, b, plus = operands(pool.rng, pool.rng.choice((1, 2, 2, 3, 3, 3)))
    return task(pool, "arithmetic", a, b, plus, think=True)


def direct(pool):
    """Up to two digits, without a thought."""
    a, b, plus = operands(pool.rng, pool.rng.choice((1, 2, 2, 2)))
    return task(pool, "arithmetic_direct", a, b, plus, think=False)


def shown(pool):
    """Three digits without a thought: the columns stand in the answer."""
    a, b, plus = operands(pool.rng, 3)
    question = pool.rng.choice(ADD if plus else TAKE).format(a=a, b=b)
    return asked("arithmetic_shown", question, f"{steps(a, b, plus)}\n{result(a, b, plus)}", None, False)


def task(pool, skill, a, b, plus, think):
    rng = pool.rng
    if rng.random() < 0.15 and (plus or a >= b) and b > 1:
        text = rng.choice(MORE if plus else LESS)
        question = text.format(a=a, b=b, name=pool.person(), things=pool.pick("objects"))
    else:
        question = rng.choice(ADD if plus else TAKE).format(a=a, b=b)
    return asked(skill, question, result(a, b, plus), steps(a, b, plus), think)


def operands(rng, digits):
    a, b = rng.randint(0, 10**digits - 1), rng.randint(0, 10 ** rng.randint(1, digits) - 1)
    if rng.random() < 0.5:
        b = rng.randint(0, 10**digits - 1)
    if rng.random() < 0.3:
        a, b = b, a
    plus = rng.random() < 0.55
    if not plus and a < b and rng.random() < 0.7:
        a, b = b, a
    return a, b, plus


def result(a, b, plus):
    return f"{a} + {b} = {a + b}." if plus else f"{a} - {b} = {a - b}."


def steps(a, b, plus):
    return added(a, b) if plus else taken(a, b)


def added(a, b):
    """127 + 385: each column with its carry, then the sum."""
    lines, carry = [], 0
    width = max(len(str(a)), len(str(b)))
    for place in range(width):
        parts = [digit(a, place), digit(b, place)] + ([carry] if carry else [])
        total = sum(parts)
        line = f"{COLUMNS[place]}: {' + '.join(map(str, parts))} = {total}, write {total % 10}"
        carry = total // 10
        lines.append(line + (f", carry {carry}." if carry else "."))
    if carry:
        lines.append(f"{COLUMNS[width]}: {carry}, write {carry}.")
    return "\n".join(lines + [f"{a} + {b} = {a + b}"])


def taken(a, b):
    if a < b:
        return f"{a} is less than {b}, so the result is negative.\n{taken(b, a)}\n{a} - {b} = -{b - a}"
    lines, borrow = [], 0
    for place in range(len(str(a))):
        top, bottom = digit(a, place), digit(b, place)
        left = f"{top} - {bottom}" + (" - 1" if borrow else "")
        value = top - bottom - borrow
        borrow = 1 if value < 0 else 0
        if borrow:
            lines.append(f"{COLUMNS[place]}: {left} = {value}, borrow 10, write {value + 10}.")
        else:
            lines.append(f"{COLUMNS[place]}: {left} = {value}, write {value}.")
    return "\n".join(lines + [f"{a} - {b} = {a - b}"])


def digit(number, place):
    return number // 10**place % 10
