"""The API through OpenAI's own Python client.

Usage: test_openai.py BASE_URL {embedded|scripted}

Most tests hold for any model. `embedded` also runs the README's examples; `scripted` needs the
answers of the `scripted` example and checks tools, reasoning and text word for word. Prints one line
a test and exits 1 when one fails.
"""

import contextlib
import io
import json
import re
import sys
import traceback
from pathlib import Path

import openai

README = Path(__file__).resolve().parents[2] / "README.md"
README_SERVER = "http://127.0.0.1:8080/v1"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The forecast for a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "run",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
        },
    },
]
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def ask(client, question, **fields):
    fields.setdefault("extra_body", NO_THINKING)
    messages = [{"role": "user", "content": question}]
    return client.chat.completions.create(model="any", messages=messages, **fields)


def refused(call):
    """The error that a call ends in."""
    try:
        call()
    except openai.APIStatusError as error:
        return error
    raise AssertionError("was accepted")


# Any model


def models_are_listed(client):
    models = client.models.list().data
    assert len(models) == 1
    assert client.models.retrieve(models[0].id).id == models[0].id
    assert refused(lambda: client.models.retrieve("other")).status_code == 404


def an_answer_has_text_and_usage(client):
    answer = ask(client, "Hello", max_tokens=8)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and isinstance(choice.message.content, str)
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.completion_tokens <= 8
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens


def a_stream_joins_to_the_whole_answer(client):
    whole = ask(client, "Hello", max_tokens=12, temperature=0).choices[0].message.content
    options = {"include_usage": True}
    stream = ask(client, "Hello", max_tokens=12, temperature=0, stream=True, stream_options=options)
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole, (text, whole)
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens <= 12
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")
    assert all(chunk.usage is None for chunk in chunks[:-1])


def the_same_prompt_is_a_cache_hit(client):
    question = "A question that no other test asks, long enough to be worth keeping."
    ask(client, question, max_tokens=1)
    usage = ask(client, question, max_tokens=1).usage
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1, usage


def a_seed_repeats_its_answer(client):
    def sample():
        answer = ask(client, "Tell me", max_tokens=12, temperature=1.0, seed=7)
        return answer.choices[0].message.content

    assert sample() == sample()


def logprobs_come_with_the_tokens(client):
    answer = ask(client, "Hello", max_tokens=4, logprobs=True, top_logprobs=3, temperature=0)
    for token in answer.choices[0].logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        best = max(token.top_logprobs, key=lambda other: other.logprob)
        assert best.bytes == token.bytes, token


def completions_continue_text(client):
    answer = client.completions.create(model="any", prompt="Once upon", max_tokens=5)
    assert isinstance(answer.choices[0].text, str) and answer.usage.completion_tokens <= 5
    stream = client.completions.create(model="any", prompt="Once upon", max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


def wrong_fields_are_named(client):
    for fields, param in [
        ({"temperature": 5}, "temperature"),
        ({"n": 2}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"extra_body": {"guided_regex": "a+"}}, "guided_regex"),
    ]:
        error = refused(lambda: ask(client, "Hello", **fields))
        assert isinstance(error, openai.BadRequestError), (fields, error)
        assert error.param == param, (error.param, param)
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    assert refused(lambda: ask(client, image)).param == "messages[0].content[0].type"


def too_long_a_prompt_is_told(client):
    limit = client.models.list().data[0].max_model_len
    error = refused(lambda: ask(client, "long " * limit))
    assert error.status_code == 400 and error.code == "context_length_exceeded", error
    assert str(limit) in error.message


def conversations_of_every_shape_are_answered(client):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    user = {"role": "user", "content": "Hello"}
    for messages in [
        [{"role": "developer", "content": "Be brief."}, user],
        [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, user],
        [user, {"role": "system", "content": "late"}],
        [{"role": "system", "content": "alone"}],
        [user, {"role": "assistant", "content": None, "tool_calls": [call]},
         {"role": "tool", "tool_call_id": "c1", "content": "sunny"}],
        [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        [{"role": "user", "content": ""}],
    ]:
        client.chat.completions.create(
            model="any", messages=messages, tools=TOOLS, max_tokens=2, user="u", store=False,
            metadata={"a": "b"}, service_tier="auto", parallel_tool_calls=True,
        )


def an_abandoned_stream_frees_the_server(client):
    stream = ask(client, "Hello", stream=True, max_tokens=1000)
    next(iter(stream))
    stream.close()
    ask(client, "Hello", max_tokens=1)


# The embedded model


def the_readme_examples_run(client):
    """As they stand there, one after the other, but for the server's address."""
    examples = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    hello, tools = [text.replace(README_SERVER, str(client.base_url)) for text in examples]
    assert str(client.base_url) in hello
    names = {}
    assert printed(hello, names).strip()
    call, answer = printed(tools, names).splitlines()
    assert call == "get_weather {'city': 'Paris'}", call
    assert "18" in answer and "cloudy" in answer, answer


def printed(code, names):
    """Runs code with these global names; what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, README.name, "exec"), names)
    return out.getvalue()


# The scripted model


def reasoning_is_apart(client):
    answer = ask(client, "say thinking", extra_body={"enable_thinking": True})
    message = answer.choices[0].message
    assert message.reasoning_content == "I greet." and message.content == "Hello there"
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def every_switch_turns_thinking_on_and_off(client):
    on = [{"enable_thinking": True}, {"reasoning_effort": "high"},
          {"reasoning": {"effort": "medium"}}, {"thinking": {"type": "enabled"}},
          {"chat_template_kwargs": {"enable_thinking": True}}]
    off = [{"enable_thinking": False}, {"reasoning_effort": "none"},
           {"reasoning": {"effort": "none"}}, {"thinking": {"type": "disabled"}}, NO_THINKING]
    for body in on:
        message = ask(client, "say thinking", extra_body=body).choices[0].message
        assert message.content == "Hello there", (body, message)
    for body in off:
        assert ask(client, "say hello", extra_body=body).choices[0].message.content == "Hello there"


def wide_characters_arrive_whole(client):
    text = "日本語 🦀👩🏽 é"
    assert ask(client, "say wide").choices[0].message.content == text
    chunks = ask(client, "say wide", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def stop_strings_cut(client):
    answer = ask(client, "say stop", stop=["END"])
    assert answer.choices[0].message.content == "one two "
    assert answer.choices[0].finish_reason == "stop"


def tool_calls_are_read_back(client):
    choice = ask(client, "use one", tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather" and call.id
    assert json.loads(call.function.arguments) == {"city": "Zürich", "days": 3}
    follow_up = [
        {"role": "user", "content": "use one"},
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "say hello"},
    ]
    answer = client.chat.completions.create(
        model="any", messages=follow_up, tools=TOOLS, extra_body=NO_THINKING
    )
    assert answer.choices[0].message.content == "Hello there"


def streamed_calls_join_to_json(client):
    calls = []
    for chunk in ask(client, "use three", tools=TOOLS, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            if delta.index == len(calls):
                assert delta.id and delta.function.name
                calls.append("")
            calls[delta.index] += delta.function.arguments
    assert [json.loads(arguments) for arguments in calls] == [
        {"city": "Zürich", "days": 3},
        {"code": 'if a < b:\n    print("<é>")'},
        {"city": "02134"},
    ], calls


ANY_MODEL = [
    models_are_listed, an_answer_has_text_and_usage, a_stream_joins_to_the_whole_answer,
    the_same_prompt_is_a_cache_hit, a_seed_repeats_its_answer, logprobs_come_with_the_tokens,
    completions_continue_text, wrong_fields_are_named, too_long_a_prompt_is_told,
    conversations_of_every_shape_are_answered, an_abandoned_stream_frees_the_server,
]
EMBEDDED = [the_readme_examples_run]
SCRIPTED = [
    reasoning_is_apart, every_switch_turns_thinking_on_and_off, wide_characters_arrive_whole,
    stop_strings_cut, tool_calls_are_read_back, streamed_calls_join_to_json,
]


def main():
    base_url, model = sys.argv[1:]
    client = openai.OpenAI(base_url=base_url + "/v1", api_key="none", max_retries=0, timeout=120)
    tests = ANY_MODEL + {"embedded": EMBEDDED, "scripted": SCRIPTED}[model]
    failed = 0
    for test in tests:
        try:
            test(client)
            print(f"PASS {model} {test.__name__}", flush=True)
        except Exception:  # one broken test must not hide the others
            failed += 1
            print(f"FAIL {model} {test.__name__}\n{traceback.format_exc()}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
