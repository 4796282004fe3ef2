"""Collects English prose and common words from Debian packages into training/build.

    python training/fetch_prose.py

Needs a Debian machine (apt-get, dpkg). Writes prose.txt, one paragraph a line, and words.txt,
common words of 3 to 9 letters. Neither is committed; training reads both.

| package | what is taken | licence |
|---|---|---|
| wordnet-base | definitions and examples | WordNet 3.0 licence (permissive) |
| debian-handbook | paragraphs of the English text | GPL-2+ or CC-BY-SA-3.0 |
| debian-faq | paragraphs | GPL-2+ |
| wamerican | the list of words | public domain and SCOWL notices |
"""

import gzip
import html
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

BUILD = Path(__file__).resolve().parent / "build"
PACKAGES = ("wordnet-base", "debian-handbook", "debian-faq", "wamerican")
WORD_USES_MIN = 12
PARAGRAPH_CHARS = (40, 900)
GLOSS_CHARS = (40, 300)


def main():
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, check=True)
        for package in sorted(Path(folder).glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), "root"], cwd=folder, check=True)
        root = Path(folder) / "root/usr/share"
        lines = glosses(root / "wordnet") + handbook(root / "doc/debian-handbook/html/en-US")
        lines += paragraphs(gzip.open(root / "doc/debian/FAQ/debian-faq.en.txt.gz", "rt").read())
        known = set((root / "dict/american-english").read_text().split())
    lines = sorted(set(lines))
    (BUILD / "prose.txt").write_text("\n".join(lines) + "\n")
    uses = Counter(word for line in lines for word in re.findall(r"\b[a-z]{3,9}\b", line))
    words = sorted(w for w, count in uses.items() if count >= WORD_USES_MIN and w in known)
    (BUILD / "words.txt").write_text("\n".join(words) + "\n")
    print(f"{len(lines)} paragraphs, {sum(map(len, lines))} characters, {len(words)} words")


def glosses(folder):
    """Definitions, with their examples: what stands after the bar in WordNet's data files."""
    found = []
    for name in ("data.noun", "data.verb", "data.adj", "data.adv"):
        for line in (folder / name).read_text("latin-1").splitlines():
            if line.startswith("  ") or "|" not in line:
                continue
            text = line.split("|", 1)[1].strip()
            text = text[0].upper() + text[1:] + "." if text else ""
            if plain(text, GLOSS_CHARS):
                found.append(text)
    return found


def handbook(folder):
    found = []
    for page in sorted(folder.glob("*.html")):
        for part in re.findall(r"<(?:p|div class=\"para\")[^>]*>(.*?)</(?:p|div)>", page.read_text(), re.S):
            text = html.unescape(re.sub(r"<[^>]*>", "", part))
            text = " ".join(text.split())
            if plain(text, PARAGRAPH_CHARS):
                found.append(text)
    return found


def paragraphs(text):
    blocks = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text))
    return [block for block in blocks if plain(block, PARAGRAPH_CHARS) and block[-1] in ".!?"]


def plain(text, chars):
    return chars[0] <= len(text) <= chars[1] and text.isascii()


if __name__ == "__main__":
    main()
