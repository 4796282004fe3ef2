"""Checks every dependency's licence against the list in deny.toml, from cargo's metadata.

usage: licences.py

The same list serves `cargo deny check licenses`; this needs no tool beyond cargo and Python, and
no network. A dependency passes when one alternative of its SPDX expression has only allowed terms.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def passes(expression: str, allowed: set[str]) -> bool:
    """Evaluates an SPDX expression with every allowed term true (a slash is an old OR)."""
    tokens = re.findall(r"\(|\)|[^\s()/]+|/", expression)
    words, index = [], 0
    while index < len(tokens):
        token = tokens[index]
        if token in ("(", ")"):
            words.append(token)
        elif token in ("AND", "OR"):
            words.append(token.lower())
        elif token == "/":
            words.append("or")
        elif index + 2 < len(tokens) and tokens[index + 1] == "WITH":
            exception = f"{token} WITH {tokens[index + 2]}"
            words.append(str(exception in allowed or token in allowed))
            index += 2
        else:
            words.append(str(token in allowed))
        index += 1
    return bool(words) and eval(" ".join(words), {"__builtins__": {}})


def main() -> int:
    allowed = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    packages = json.loads(output)["packages"]
    foreign = [
        (package["name"], package["version"], package["source"])
        for package in packages
        if package["source"] and not package["source"].startswith("registry+")
    ]
    refused = [
        (package["name"], package["version"], package["license"])
        for package in packages
        if not passes(package["license"] or "", allowed)
    ]
    for name, version, problem in foreign + refused:
        print(f"{name} {version}: {problem}", file=sys.stderr)
    print(f"{len(packages)} packages, {len(refused)} licences refused, {len(foreign)} not from the registry")
    return 1 if refused or foreign else 0


if __name__ == "__main__":
    sys.exit(main())
