"""The conversation of `calla chat` on a real terminal: typing, commands, Ctrl-C, Ctrl-D, history.

Usage: python3 tests/cli/interactive.py [PROGRAM]     needs pexpect
PROGRAM is target/debug/calla when left out. The embedded model answers.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import pexpect

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "> "
WAIT_S = 120  # a slow machine, a slow backend
BRACKETED_PASTE = ("\x1b[200~", "\x1b[201~")
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "target/debug/calla")
    tests = [value for name, value in globals().items() if name.startswith("test_")]
    for test in tests:
        with tempfile.TemporaryDirectory() as home:
            test(lambda *flags, **env: Chat(program, home, flags, env))
        print(f"ok  {test.__name__}")


class Chat:
    """A running conversation."""

    def __init__(self, program, home, flags, env):
        environment = dict(HOME=home, TERM="xterm", PATH=os.environ["PATH"]) | env
        # The editor turns bracketed paste on when it reads; a dumb terminal has no editor.
        self.prompt = PROMPT if environment["TERM"] == "dumb" else r"\x1b\[\?2004h"
        self.child = pexpect.spawn(
            program,
            ["chat", *flags],
            env=environment,
            encoding="utf-8",
            timeout=WAIT_S,
            dimensions=(40, 200),
        )
        self.ready()

    def ready(self):
        """Waits for the prompt; what came before it."""
        self.child.expect(self.prompt)
        return self.child.before

    def say(self, line):
        """Types a line and waits for the prompt after it; all that appeared."""
        self.child.send(line + "\r")
        return self.ready()

    def leave(self):
        self.child.send(CTRL_D)
        self.child.expect(pexpect.EOF)
        self.child.close()
        assert self.child.exitstatus == 0, self.child.exitstatus


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_questions_are_answered_and_remembered(start):
    chat = start("--max-tokens", "6", "--no-think")
    chat.say("Hello")
    first = plain(chat.say("/stats"))
    assert re.search(r"prompt +\d+ tokens", first), first
    assert re.search(r"answer +[1-6] tokens", first), first
    chat.say("And now?")
    second = plain(chat.say("/stats"))
    tokens = [int(re.search(r"prompt +(\d+) tokens", text)[1]) for text in (first, second)]
    assert tokens[1] > tokens[0], tokens
    chat.say("/reset")
    chat.say("Hello")
    again = plain(chat.say("/stats"))
    assert int(re.search(r"prompt +(\d+) tokens", again)[1]) == tokens[0], again
    chat.leave()


def test_thinking_is_dim_and_can_be_switched(start):
    chat = start("--max-tokens", "6", "--think")
    assert "\x1b[2m" in chat.say("Hello").split("Hello", 1)[1]
    assert "thinking is on" in chat.say("/think")
    assert "thinking is off" in chat.say("/think off")
    shown = chat.say("Hello")
    stopped_note = "\x1b[2mcut off"
    assert "\x1b[2m" not in shown.replace(stopped_note, ""), repr(shown)
    chat.leave()


def test_no_colour_is_honoured(start):
    chat = start("--max-tokens", "6", "--think", NO_COLOR="1")
    shown = chat.say("Hello")
    assert "\x1b[2m" not in shown and "<think>" in shown, repr(shown)
    chat.leave()


def test_a_dumb_terminal_gets_no_escape_codes(start):
    chat = start("--max-tokens", "6", "--think", TERM="dumb")
    shown = chat.say("Hello")
    assert "\x1b" not in shown and "<think>" in shown, repr(shown)
    chat.leave()


def test_a_line_that_is_not_utf8_is_told_and_the_conversation_goes_on(start):
    chat = start("--system", "Be brief.")
    chat.say("/system Be kind.")
    os.write(chat.child.child_fd, b"caf\xe9 au lait\r")
    assert "not UTF-8" in chat.ready()
    assert "Be kind." in chat.say("/system")
    chat.leave()


def test_system_message_is_told_set_and_removed(start):
    chat = start("--system", "Be brief.")
    assert "Be brief." in chat.say("/system")
    assert "Be kind." in chat.say("/system Be kind.")
    assert "no system message" in chat.say("/system none")
    chat.leave()


def test_unknown_commands_are_told(start):
    chat = start()
    assert "no such command" in chat.say("/frobnicate")
    assert "/think" in chat.say("/help")
    chat.leave()


def test_ctrl_c_stops_the_answer_and_not_the_program(start):
    # What was written gains by it: the thought repeats itself until the context is full.
    chat = start("--think", "--frequency-penalty", "-2")
    chat.child.send("What is 48 + 75?\r")
    chat.child.expect_exact("\x1b[2m")  # the thinking begins
    chat.child.expect_exact("\x1b[2m")
    chat.child.sendintr()
    assert "stopped" in chat.ready()
    # A later answer is not stopped by it, and at the prompt Ctrl-C throws the line away.
    chat.child.send("never sent" + CTRL_C)
    chat.ready()
    assert "thinking is on" in chat.say("/think")
    chat.leave()


def test_messages_of_several_lines(start):
    chat = start()
    chat.child.send("/system one\\\r")
    assert "two" in chat.say("two")
    assert "one\r\ntwo" in plain(chat.say("/system")).replace("\r\r", "\r")
    opened, closed = BRACKETED_PASTE
    chat.child.send(f"{opened}/system three\nfour{closed}")
    assert "four" in chat.say("")
    assert "three\r\nfour" in plain(chat.say("/system")).replace("\r\r", "\r")
    chat.leave()


def test_history_outlives_the_program(start):
    chat = start()
    chat.say("/system remember me")
    chat.leave()
    chat = start()
    assert "remember me" in chat.say(UP)
    chat.leave()


if __name__ == "__main__":
    main()
