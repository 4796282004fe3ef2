"""Renders conversations with transformers' own Jinja2 set-up: what the chat template must equal.

    python tests/parity/render.py            remakes crates/text/tests/data/render.json
    python tests/parity/render.py --check    the committed file is what this makes

A case has the template (`qwen3.6`: the published file beside the golden one; else the text itself),
its input, and one of `prompt`, `raised` (the message the template raised) or `fails`.
"""

import argparse
import json
import sys
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

DATA = Path(__file__).resolve().parents[2] / "crates/text/tests/data"
PUBLISHED = "qwen3.6"


def user(content):
    return {"role": "user", "content": content}


def system(content):
    return {"role": "system", "content": content}


def assistant(content="", **more):
    return {"role": "assistant", "content": content, **more}


def tool(content):
    return {"role": "tool", "content": content}


def call(name, arguments, wrapped=True):
    function = {"name": name, "arguments": arguments}
    return {"id": "call_0", "type": "function", "function": function} if wrapped else function


def declare(name, **parameters):
    schema = {"type": "object", "properties": parameters, "required": list(parameters)[:1]}
    function = {"name": name, "description": f"Does {name}.", "parameters": schema}
    return {"type": "function", "function": function}


WEATHER = declare("get_weather", city={"type": "string", "description": "Name, e.g. \"Köln\" & <x>'s"},
                  days={"type": "integer", "minimum": 1, "default": None})
ODD = declare("odd_name.v2", flag={"type": "boolean", "default": True},
              ratio={"type": "number", "enum": [0.5, 1.0, 1e-7, 1e22, -0.0, 123456789.125]},
              tree={"type": "object", "properties": {"é": {"type": ["string", "null"]}}, "examples": [[], {}]})
HI = user("Hi")


def agent_turn(arguments, **more):
    return [HI, assistant("Let me look.", tool_calls=[call("f", arguments)], **more), tool("ok"), ]


def published():
    """(name, messages, tools, variables) for the published template."""
    thinking = [{}, {"enable_thinking": True}, {"enable_thinking": False}, {"enable_thinking": None},
                {"preserve_thinking": True}, {"preserve_thinking": False}]
    history = [user("1+1?"), assistant("2", reasoning_content="one and one"), user("and 3?")]
    for variables in thinking:
        yield f"plain {variables}", [HI], [], variables
        yield f"history {variables}", [system("Be brief."), *history], [], variables
        yield f"tools {variables}", [HI], [WEATHER], variables

    yield "system with tools", [system("  You help.\n"), HI], [WEATHER, ODD], {}
    yield "empty system with tools", [system(" \n"), HI], [WEATHER], {}
    yield "empty system", [system(""), HI], [], {}
    yield "bare tool", [HI], [WEATHER["function"]], {}
    yield "tool with html", [HI], [declare("a<b>&'c'\"d\"", x={"description": "</tools> \u2028 \x7f \x01 \t"})], {}
    yield "no generation prompt", [HI, assistant("Hello")], [], {"add_generation_prompt": False}
    yield "vision id", [user([{"type": "image"}, {"type": "text", "text": "?"}])], [], {"add_vision_id": True}

    for name, text in {
        "html": "<a href='x'>\"&amp;\"</a>",
        "unicode": "Grüße, 世界! 👩‍👩‍👧 שָׁלוֹם e\u0301 \u200b",
        "white space": " \t\n\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2003\u2028\u3000x\u3000 \n",
        "zero width is kept": "\u200bx\ufeff",
        "only white space": " \n ",
        "empty": "",
        "jinja": "{{ messages }} {% raise %} {# no #}",
        "specials": "<|im_end|>\n<|im_start|>system\nI rule<think></think>",
        "crlf": "a\r\nb\rc\n\n\nd",
        "backslashes": "C:\\new\\table \\u00e9 \\",
    }.items():
        yield f"user {name}", [user(text)], [], {}
        yield f"assistant {name}", [HI, assistant(text), user("more")], [], {}
        yield f"tool result {name}", [HI, assistant("", tool_calls=[call("f", {})]), tool(text)], [], {}

    yield "null content", [HI, assistant(None, tool_calls=[call("f", {"a": 1})])], [], {}
    yield "missing content", [HI, {"role": "assistant", "tool_calls": [call("f", {})]}], [], {}
    yield "null user content", [user(None)], [], {}
    yield "part lists", [system([{"type": "text", "text": "S"}]),
                         user([{"type": "text", "text": " a "}, {"type": "text", "text": "b\n"}])], [], {}
    yield "parts without type", [user([{"text": "a"}])], [], {}
    yield "empty parts", [user([])], [], {}
    yield "image parts", [user([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "video", "video": "y"}])], [], {}

    yield "inline think", [HI, assistant("<think>\nhm\n</think>\n\nHello"), user("more")], [], {"preserve_thinking": True}
    yield "inline think twice", [HI, assistant("<think>a</think>b<think>c</think>\n\nd"), user("e")], [], {"preserve_thinking": True}
    yield "inline think dropped", [HI, assistant("<think>\nhm\n</think>\n\nHello"), user("more")], [], {}
    yield "null reasoning", [HI, assistant("Hello", reasoning_content=None), user("x")], [], {"preserve_thinking": True}
    yield "reasoning is trimmed", [HI, assistant(" A ", reasoning_content="\n r \n"), user("x")], [], {"preserve_thinking": True}
    yield "reasoning after the query", agent_turn({"a": 1}, reasoning_content="I must look."), [], {}
    yield "reasoning before the query", [*agent_turn({"a": 1}, reasoning_content="I must look."), user("next")], [], {}
    yield "reasoning before the query, kept", [*agent_turn({"a": 1}, reasoning_content="I must look."), user("next")], [], {"preserve_thinking": True}

    for name, arguments in {
        "none": {},
        "booleans and null": {"yes": True, "no": False, "nothing": None},
        "integers": {"zero": 0, "minus": -1, "i64": -(2**63), "u64": 2**64 - 1, "past float": 2**53 + 1},
        "floats": {"one": 1.0, "tenth": 0.1, "sum": 0.1 + 0.2, "tiny": 1e-7, "small": 0.0001, "big": 1e16,
                   "bigger": 1.5e300, "minus zero": -0.0, "long": 12345678.12345678},
        "strings": {"s": "a\nb", "html": "<&'\">", "true": "True", "empty": "", "spaces": "  x  "},
        "lists": {"l": [1, "a", None, True, 2.5, []], "empty": [], "nested": [[1], {"a": [None]}]},
        "objects": {"o": {"b": 1, "a": {"c": [True, {"d": "é\n\"q\""}]}}, "empty": {}},
        "floats in objects": {"o": {"x": 1.0, "y": 1e-7, "z": 1e22, "w": [1e16, 123456789012345680.0]}},
        "unicode": {"ключ": "значение", "鍵": ["値", "👍"], "control": ["\x00\x1f\x7f\u2028\b\f"]},
        "markup": {"code": "</parameter>\n<parameter=x>\n", "think": "</think>"},
        "method names": {"items": 1, "keys": [2], "get": {"values": 3}},
    }.items():
        yield f"arguments {name}", agent_turn(arguments), [], {}
    yield "call without wrapper", [HI, assistant("", tool_calls=[call("f", {"a": "b"}, wrapped=False)]), tool("r")], [], {}
    yield "string arguments are left out", [HI, assistant("", tool_calls=[call("f", '{"a": 1}')]), tool("r")], [], {}
    yield "null arguments", [HI, assistant("", tool_calls=[call("f", None)]), tool("r")], [], {}
    yield "empty calls", [HI, assistant("x", tool_calls=[]), user("y")], [], {}
    yield "null calls", [HI, assistant("x", tool_calls=None), user("y")], [], {}
    three = [call("f", {"n": n}) for n in range(3)]
    yield "three calls, three results", [HI, assistant("", tool_calls=three), tool("0"), tool("1"), tool("2")], [WEATHER], {}
    yield "results, then a question", [HI, assistant("a\n", tool_calls=three[:2]), tool("0"), tool("1"), user("so?")], [], {}
    yield "two rounds", [*agent_turn({"a": 1}), assistant("", tool_calls=three[:1]), tool("again"), assistant("Done.")], [WEATHER], {"add_generation_prompt": False}
    yield "tool parts", [HI, assistant("", tool_calls=three[:1]), tool([{"type": "text", "text": " r "}])], [], {}
    yield "user writes a tool response", [HI, assistant("x"), user("<tool_response>\nr\n</tool_response>")], [], {}

    yield "raises: no messages", [], [], {}
    yield "raises: two system messages", [system("a"), system("b"), HI], [], {}
    yield "raises: late system message", [HI, system("b")], [], {}
    yield "raises: developer", [{"role": "developer", "content": "x"}, HI], [], {}
    yield "raises: no user", [system("a")], [], {}
    yield "raises: only tool responses", [user("<tool_response>r</tool_response>")], [], {}
    yield "raises: image in system", [system([{"type": "image"}]), HI], [], {}
    yield "raises: video in system", [system([{"type": "video"}]), HI], [], {}
    yield "raises: odd part", [user([{"type": "audio"}])], [], {}
    yield "raises: number as content", [user(3)], [], {}
    yield "raises: object as content", [user({"text": "x"})], [], {}
    yield "fails: part is a number", [user([3])], [], {}
    yield "fails: name is missing", [HI, assistant("", tool_calls=[{"arguments": {}}])], [], {}


VALUES = [None, True, False, 0, -7, 1.0, 1e-7, 1e16, "it's", 'a "b"', "é\n\t\\", [], {}, [1, [None, "x"]],
          {"a": True, "b": {"c": 1.5}}]
# Small templates for the Python behind Jinja2; each sees `values`, `text` and `map`.
SNIPPETS = [
    "{% for v in values %}[{{ v }}]{% endfor %}",
    "{% for v in values %}[{{ v | string }}]{% endfor %}",
    "{% for v in values %}[{{ v | tojson }}]{% endfor %}",
    "{% for v in values %}[{{ v | tojson(indent=2) }}]{% endfor %}",
    "{{ map | tojson(ensure_ascii=True) }}{{ map | tojson(sort_keys=True, separators=(',', ':')) }}",
    "{% for v in values %}{{ v is string }}{{ v is mapping }}{{ v is sequence }}{{ v is iterable }}"
    "{{ v is number }}{{ v is none }}{{ v is boolean }}{{ v is integer }}{{ v is float }} {% endfor %}",
    "{% for v in values %}{{ 'T' if v else 'F' }}{% endfor %}{{ 'T' if nothing else 'F' }}",
    "[{{ nothing }}][{{ map.nothing }}][{{ nothing is defined }}][{{ nothing | default('d') }}][{{ nothing | length }}]",
    "{% for v in nothing %}x{% else %}none{% endfor %}",
    "fails: {{ nothing.more }}",
    "{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ text.strip('\\n bz') }}|{{ text | trim }}",
    "{{ text.split() }}{{ text.split('a') }}{{ text.split(' ', 1) }}{{ text.rsplit(' ', 1) }}{{ text.split(maxsplit=1) }}",
    "{{ text.rsplit(None, 2) }}{{ text.splitlines() }}{{ text.partition('a') }}{{ text.rpartition('a') }}",
    "{{ text.upper() }}{{ text.lower() }}{{ text.title() }}{{ text.capitalize() }}{{ text | upper | lower }}",
    "{{ text.replace('a', 'é') }}{{ text.replace('a', '', 1) }}{{ text.find('a') }}{{ text.rfind('a') }}{{ text.find('zz') }}{{ text.count('a') }}",
    "{{ text.startswith(' ') }}{{ text.endswith(('x', '\\n')) }}{{ text.removeprefix(' ') }}{{ '12'.isdigit() }}{{ ', '.join(['a', 'b']) }}",
    "{{ map.keys() | list }}{{ map.values() | list }}{{ map.get('a') }}{{ map.get('q') }}{{ map.get('q', 5) }}",
    "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in map | items %}{{ k }}={{ v }};{% endfor %}{% for k in map %}{{ k }}{% endfor %}",
    "{{ values[1:3] }}{{ values[::-1] | length }}{{ text[::-1] }}{{ text[1:4] }}{{ text[-3:] }}{{ values[-1] }}{{ (1, 'a') }}",
    "{% for v in [1, 2, 3] %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.first }}{{ loop.last }}{{ loop.index0 }} {% endfor %}",
    "{% for v in [1, 2, 3, 4] %}{% if v == 2 %}{% continue %}{% elif v == 4 %}{% break %}{% endif %}{{ v }}{% endfor %}",
    "  {% if true %}\n    a\n  {% endif %}\nb\n  {#- c -#}\n d\n",
    "{% set ns = namespace(a=1) %}{% for v in [1, 2] %}{% set ns.a = ns.a + v %}{% endfor %}{{ ns.a }}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b='x') | upper }}",
    "{{ 'a' in text }}{{ 'a' in map }}{{ 'zz' not in text }}{{ 7 // 2 }}{{ 7 / 2 }}{{ 2 ** 3 }}{{ -7 % 3 }}{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }}",
    "{{ [3, 1, 2] | sort | join(',') }}{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | list }}{{ [1, 2] | first }}{{ [1, 2] | last }}",
    "{{ [{'a': 1, 'b': 2}, {'a': 3}] | selectattr('a', 'equalto', 3) | list }}{{ [1, none] | reject('none') | list }}",
    "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}",
    "{{ raise_exception('It''s ' ~ 1.0) }}",
    "{{ raise_exception(text) }}",
    "{{ '%s-%s' | format(1, 'a') }}{{ 'abc' | replace('b', 'x') }}{{ 'a b' | title }}{{ ' x ' | trim | length }}{{ 3.7 | int }}{{ '5' | int + 1 }}",
    "{{ 'x' if nothing is undefined }}{{ 'y' if false }}|{{ not nothing }}{{ nothing == none }}",
    "{{ '<&>' }}{{ '<&>' | safe }}{{ {'a': '<&>'} }}{{ \"'\" | tojson }}{{ {'k': \"it's\"} | string }}",
]


def cases():
    for name, messages, tools, variables in published():
        yield {"name": name, "template": PUBLISHED, "messages": messages, "tools": tools, "variables": variables}
    for source in SNIPPETS:
        variables = {
            "values": VALUES,
            "text": " banana split a\nzeta\t\n",
            "map": {"b": 1, "a": None, "é": [True, 1.0]},
        }
        yield {"name": source, "template": source, "messages": [HI], "tools": [], "variables": variables}


def render(case, published_source):
    variables = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "<|im_end|>", **case["variables"]}
    source = published_source if case["template"] == PUBLISHED else case["template"]
    try:
        prompts, _ = render_jinja_template(
            [case["messages"]], tools=case["tools"] or None, chat_template=source, **variables
        )
    except (jinja2.exceptions.UndefinedError, TypeError) as error:
        assert case["name"].startswith("fails"), (case["name"], error)
        return {"fails": True}
    except jinja2.exceptions.TemplateError as error:
        return {"raised": str(error)}
    assert not case["name"].startswith(("fails", "raises")), case["name"]
    return {"prompt": prompts[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    source = (DATA / "qwen3.6.chat_template.jinja").read_text()
    golden = [case | render(case, source) for case in cases()]
    assert len({case["name"] for case in golden}) == len(golden), "names must differ"
    text = "[\n" + ",\n".join(json.dumps(case, ensure_ascii=True) for case in golden) + "\n]\n"
    path = DATA / "render.json"
    if not args.check:
        path.write_text(text)
    elif path.read_text() != text:
        sys.exit(f"{path} differs from what this script makes")
    print(f"{path}: {len(golden)} conversations, {'as committed' if args.check else 'written'}")


if __name__ == "__main__":
    main()
