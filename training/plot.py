"""Draws the loss over the run from its logs: python training/plot.py OUT.svg LOG.jsonl [LOG.jsonl]"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, EDGE = 720, 320, 48


def main():
    out, logs = Path(sys.argv[1]), sys.argv[2:]
    points, base, before = [], 0.0, 0
    for log in logs:
        entries = [json.loads(line) for line in Path(log).read_text().splitlines()]
        if any("optimiser" in e for e in entries):  # a piece with a fresh optimiser counts anew
            before = points[-1][2] if points else 0
        points += [(base + e["s"] / 60, e["loss"], before + e["tokens"]) for e in entries if "loss" in e]
        base += max(e["s"] for e in entries) / 60
    if len(points) < 2:
        sys.exit("the logs hold fewer than two losses")
    out.write_text(drawn(points))


def drawn(points):
    """Minutes across, loss up, linear from 0."""
    last, top = points[-1][0], max(loss for _, loss, _ in points)
    x = lambda minutes: EDGE + minutes / last * (WIDTH - 2 * EDGE)
    y = lambda loss: HEIGHT - EDGE - loss / top * (HEIGHT - 2 * EDGE)
    line = " ".join(f"{x(m):.1f},{y(loss):.1f}" for m, loss, _ in points)
    marks = []
    for i in range(6):
        minutes, loss = last * i / 5, top * i / 5
        marks.append(f'<text x="{x(minutes):.0f}" y="{HEIGHT - EDGE + 18}" text-anchor="middle">{minutes:.0f}</text>')
        marks.append(f'<text x="{EDGE - 6}" y="{y(loss) + 4:.0f}" text-anchor="end">{loss:.1f}</text>')
        marks.append(f'<path d="M{EDGE} {y(loss):.1f}H{WIDTH - EDGE}" stroke="#ddd"/>')
    final, tokens = points[-1][1], points[-1][2]
    title = f"Training loss by minutes; {tokens / 1e6:.0f} million tokens, last {final:.3f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n<text x="{EDGE}" y="24">{title}</text>\n'
        + "\n".join(marks)
        + f'\n<polyline points="{line}" fill="none" stroke="#28648c" stroke-width="1.5"/>\n</svg>\n'
    )


if __name__ == "__main__":
    main()
