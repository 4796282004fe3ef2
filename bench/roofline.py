#!/usr/bin/env python3
"""Draws what `calla bench --profile --json` measured against the machine's two limits, as an SVG.

    calla bench --model DIR --profile --json > bench.json
    bench/roofline.py bench.json --peak-gflops 790000 > roofline.svg

A point is an op: operations per byte across, operations per second up. Above it lies the roof: the
bandwidth that the bench measured (`read_gb_s`) up to the ridge, then --peak-gflops, which must be
measured elsewhere. Ops without bytes or operations of their own are left out.
"""

import argparse
import json
import math
import sys
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 920, 560, 80, 30, 40, 60
COLOURS = {"prefill": "#b5482a", "decode": "#2a6db5"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", help="JSON of calla bench --profile --json, - for standard input")
    parser.add_argument("--peak-gflops", type=float, required=True, help="of a large matrix product here")
    parser.add_argument("--context", type=int, help="which run of the report (the first)")
    args = parser.parse_args()
    try:
        with sys.stdin if args.report == "-" else open(args.report, encoding="utf-8") as file:
            report = json.load(file)
        runs = [run for run in report["runs"] if args.context in (None, run["context"]) and run.get("profile")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{args.report}: not what calla bench --profile --json writes: {error!r}")
    if not runs:
        sys.exit(f"{args.report}: no run with a profile" + (f" at {args.context}" if args.context else ""))
    points = list(ops(runs[0]["profile"]))
    if not points:
        sys.exit(f"{args.report}: no op has both bytes and operations")
    print(draw(report, runs[0], points, args.peak_gflops))


def ops(profile):
    """Phase, name, operations a byte, GFLOP/s, share of the phase's time."""
    for phase in ("prefill", "decode"):
        for stage in profile.get(phase, {}).get("stages", []):
            for op in stage["ops"]:
                if op.get("gb_s") and op.get("gflop_s"):
                    yield phase, f"{stage['stage']}: {op['op']}", op["gflop_s"] / op["gb_s"], op["gflop_s"], op["share"]


def draw(report, run, points, peak):
    bandwidth = report["read_gb_s"]
    ridge = peak / bandwidth
    xs = [point[2] for point in points] + [ridge]
    ys = [point[3] for point in points] + [peak]
    x_range = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)))
    y_range = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def x(value):
        return LEFT + (math.log10(value) - x_range[0]) / (x_range[1] - x_range[0]) * (WIDTH - LEFT - RIGHT)

    def y(value):
        return HEIGHT - BOTTOM - (math.log10(value) - y_range[0]) / (y_range[1] - y_range[0]) * (HEIGHT - TOP - BOTTOM)

    def text(at_x, at_y, words, **attributes):
        extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}"{extra}>{escape(words)}</text>'

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(LEFT, 20, f"{report['backend']}, {report['model']}, context {run['context']}", font_size=13),
    ]
    for power in range(x_range[0], x_range[1] + 1):
        at = x(10.0**power)
        lines.append(f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        lines.append(text(at, HEIGHT - BOTTOM + 16, f"{10.0**power:g}", text_anchor="middle"))
    for power in range(y_range[0], y_range[1] + 1):
        at = y(10.0**power)
        lines.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#e4e4e4"/>')
        lines.append(text(LEFT - 6, at + 4, f"{10.0**power:g}", text_anchor="end"))
    lines.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 20, "operations a byte", text_anchor="middle"))
    lines.append(text(16, HEIGHT / 2, "GFLOP/s", text_anchor="middle", transform=f"rotate(-90 16 {HEIGHT / 2})"))

    # the roof, from where bandwidth leaves the picture at the left or below
    start = max(10.0 ** x_range[0], 10.0 ** y_range[0] / bandwidth)
    roof = [(start, start * bandwidth), (ridge, peak), (10.0 ** x_range[1], peak)]
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in roof)
    lines.append(f'<polyline points="{path}" fill="none" stroke="#333333" stroke-width="1.5"/>')
    lines.append(text(x(ridge) - 6, y(peak) - 6, f"{bandwidth:.0f} GB/s, {peak / 1000:.0f} TFLOP/s", text_anchor="end"))

    labels = []  # where words stand already
    for phase, name, intensity, speed, share in sorted(points, key=lambda point: -point[3]):
        radius = 3 + 12 * math.sqrt(share)
        share_of_roof = speed / min(peak, intensity * bandwidth)
        lines.append(
            f'<circle cx="{x(intensity):.1f}" cy="{y(speed):.1f}" r="{radius:.1f}" fill="{COLOURS[phase]}" fill-opacity="0.55">'
            f"<title>{escape(phase)} {escape(name)}: {share_of_roof:.0%} of the roof, {share:.1%} of the time</title></circle>"
        )
        at_x, at_y = x(intensity) + radius + 2, y(speed) + 4
        while any(abs(at_x - other_x) < 130 and abs(at_y - other_y) < 11 for other_x, other_y in labels):
            at_y += 11
        labels.append((at_x, at_y))
        lines.append(text(at_x, at_y, f"{name.split(': ')[1]} {share_of_roof:.0%}", fill=COLOURS[phase]))
    for index, (phase, colour) in enumerate(COLOURS.items()):
        words = f"{phase}: area by share of its time, number by share of the roof"
        lines.append(text(WIDTH - RIGHT, HEIGHT - BOTTOM - 22 + 14 * index, words, fill=colour, text_anchor="end"))
    lines.append("</svg>")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
