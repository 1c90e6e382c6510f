"""Draws estimates with their 90 % intervals as an SVG picture: one below another, or along curves.

The pictures are files in the repository, so the same numbers must give the same bytes, and they
must be readable on a phone and on a dark page. A plotly figure is neither.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from html import escape

from orchestrator.analysis import Estimate
from orchestrator.analysis.words import factor_in_words, in_words

WIDTH, ROW, LINE, TOP, BOTTOM, MARGIN = 420, 32, 16, 8, 34, 14

FITS = 60
"""Largest number of characters of a name and its number on one line, in the widest usual font."""

STYLE = """\
text{font:12px system-ui,sans-serif;fill:#333}.n{fill:#666;text-anchor:end}.t{fill:#666;\
text-anchor:middle}.g{stroke:#ddd}.b{stroke:#c2410c;stroke-dasharray:4 3}.i{stroke:#3f6ea6;\
stroke-width:3;stroke-linecap:round}.v{fill:#1d4e89}@media(prefers-color-scheme:dark){text{fill:\
#ddd}.n,.t{fill:#aaa}.g{stroke:#444}.b{stroke:#fb923c}.i{stroke:#7aa7dc}.v{fill:#a9c8ee}}"""

COLOURS = (
    ("#1d4e89", "#8fb8e8"),
    ("#c2410c", "#fb923c"),
    ("#15803d", "#4ade80"),
    ("#a21caf", "#e879f9"),
)
"""Of curves, on a light and on a dark page."""

MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "M-4-4h8v8h-8z",
    "M0-5l5 9h-10z",
    "M0-5l5 5-5 5-5-5z",
)

LEFT, RIGHT, PANEL, HEAD = 46, 24, 190, 26
"""Of curves: room for numbers of steps and for half a batch size, and the heights of a panel and of
its title."""


def intervals(
    rows: Sequence[tuple[str, Estimate]], *, axis: str, bounds: Sequence[float] = ()
) -> str:
    """A picture with a row for each name and estimate, and a dashed line at each bound. The scale
    is logarithmic if all values and bounds are above 0 and no interval goes below 0. An interval
    that begins at 0 then begins at the edge."""
    ends = [
        end
        for _, one in rows
        for end in (one.value, one.low, one.high)
        if end is not None and math.isfinite(end)
    ]
    ends += bounds
    positive = all(one.value > 0 for _, one in rows) and all(bound > 0 for bound in bounds)
    logarithmic = min(ends) >= 0 and positive
    least, most = min(end for end in ends if end > 0 or not logarithmic), max(ends)

    def place(value: float) -> float:
        low, high = _scaled(least, logarithmic), _scaled(most, logarithmic)
        span = (high - low) or 1.0
        part = (_scaled(value, logarithmic) - low) / span
        return MARGIN + (WIDTH - 2 * MARGIN) * part

    shown = [(_short(name), said(one)) for name, one in rows]
    drops = [0 if len(name) + len(number) <= FITS else LINE for name, number in shown]
    floor = TOP + ROW * len(rows) + sum(drops)
    caption = textwrap.wrap(axis, FITS)
    height = floor + BOTTOM + LINE * (len(caption) - 1)
    tops = [TOP + ROW * (at + 1) + sum(drops[: at + 1]) - 14 for at in range(len(rows))]

    def across(x: float) -> str:
        """A line from top to bottom that leaves out the words."""
        return "".join(f"M{x:.1f} {top}v12" for top in tops)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img"><style>{STYLE}</style>'
    ]
    for tick in _ticks(least, most, logarithmic):
        x = place(tick)
        parts.append(f'<path class="g" d="{across(x)}"/>')
        parts.append(f'<text class="t" x="{x:.1f}" y="{floor + 14}">{tick:g}</text>')
    parts += [f'<path class="b" d="{across(place(bound))}"/>' for bound in bounds]
    y = TOP
    for (_, one), (name, number), drop in zip(rows, shown, drops, strict=True):
        parts.append(f'<text x="{MARGIN}" y="{y + 13}">{escape(name)}</text>')
        y += drop
        parts.append(f'<text class="n" x="{WIDTH - MARGIN}" y="{y + 13}">{number}</text>')
        low, high = (one.value if end is None else end for end in (one.low, one.high))
        if math.isfinite(low):
            left, right = place(max(low, least)), place(min(high, most))
            parts.append(f'<path class="i" d="M{left:.1f} {y + 23}H{right:.1f}"/>')
        if math.isfinite(one.value):
            parts.append(f'<circle class="v" cx="{place(one.value):.1f}" cy="{y + 23}" r="4.5"/>')
        y += ROW
    for line, text in enumerate(caption):
        y = floor + BOTTOM - 4 + LINE * line
        parts.append(f'<text class="t" x="{WIDTH / 2:g}" y="{y}">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def curves(panels: Mapping[str, Mapping[str, Sequence[tuple[int, Estimate]]]]) -> str:
    """Steps against batch size, with intervals, of the same recipes in each panel. A dashed line
    from the first point is perfect scaling."""
    names = [*dict.fromkeys(name for panel in panels.values() for name in panel)]
    light, dark = (
        "".join(
            f".c{at}{{stroke:{pair[side]};fill:{pair[side]}}}"
            for at, pair in enumerate(COLOURS[: len(names)])
        )
        for side in (0, 1)
    )
    height = HEAD + len(panels) * (HEAD + PANEL + BOTTOM)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img"><style>{STYLE}polyline{{fill:none!important;'
        f"stroke-width:1.5}}{light}@media(prefers-color-scheme:dark){{{dark}}}</style>"
    ]
    x = float(LEFT)
    for at, name in enumerate(names):
        parts.append(f'<path class="c{at}" transform="translate({x + 6:g} 14)" d="{MARKERS[at]}"/>')
        parts.append(f'<text x="{x + 16:g}" y="18">{escape(name)}</text>')
        x += 40 + 8 * len(name)
    for number, (title, panel) in enumerate(panels.items()):
        top = HEAD + number * (HEAD + PANEL + BOTTOM)
        parts.append(f'<text x="{LEFT}" y="{top + 18}">{escape(_short(title))}</text>')
        parts += _panel(panel, names, top + HEAD)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    panel: Mapping[str, Sequence[tuple[int, Estimate]]], names: Sequence[str], top: float
) -> list[str]:
    sizes = sorted({size for points in panel.values() for size, _ in points})
    ends = [end for points in panel.values() for _, one in points for end in one.ends]
    least, most = math.log2(min(ends)), math.log2(max(ends))

    def across(size: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(size / sizes[0]) / math.log2(
            sizes[-1] / sizes[0]
        )

    def down(steps: float) -> float:
        return top + PANEL * (most - math.log2(steps)) / (most - least)

    parts = []
    for power in range(math.ceil(math.log10(min(ends))), math.floor(math.log10(max(ends))) + 1):
        y = down(10**power)
        parts.append(f'<path class="g" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="n" x="{LEFT - 6}" y="{y + 4:.1f}">{10**power:,}</text>')
    for size in sizes:
        parts.append(f'<path class="g" d="M{across(size):.1f} {top}v{PANEL}"/>')
        parts.append(
            f'<text class="t" x="{across(size):.1f}" y="{top + PANEL + 16}">{size:,}</text>'
        )
    first, start = next(iter(panel.values()))[0]
    last = min(sizes[-1], first * start.value / min(ends))
    parts.append(
        f'<path class="b" d="M{across(first):.1f} {down(start.value):.1f}'
        f'L{across(last):.1f} {down(start.value * first / last):.1f}"/>'
    )
    for name, points in panel.items():
        at = names.index(name)
        places = [(across(size), down(one.value)) for size, one in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="c{at}" points="{line}"/>')
        for (x, y), (_, one) in zip(places, points, strict=True):
            low, high = map(down, one.ends)
            parts.append(f'<path class="c{at}" d="M{x:.1f} {low:.1f}V{high:.1f}"/>')
            parts.append(
                f'<path class="c{at}" transform="translate({x:.1f} {y:.1f})" d="{MARKERS[at]}"/>'
            )
    return parts


def _short(name: str) -> str:
    name = name.replace("/fc_64_64_64", "").replace("val/error", "error")
    name = re.sub(r" for (\d+) measurements", r", \1 times", name)
    return re.sub(r"\?train_examples=(\d+)", r", \1 examples", name)


def said(estimate: Estimate) -> str:
    """An estimate with its interval, in words. Ratios near 1 need their digits: a bound may lie
    between them."""
    if estimate.low is not None and math.isinf(estimate.low):
        return "never"
    if 0.1 < estimate.value < 10:
        return in_words(estimate, lambda end: f"{end:.2f}" if end < 9.995 else f"{end:.2g}")
    return factor_in_words(estimate) if estimate.value < 100 else in_words(estimate)


def _scaled(value: float, logarithmic: bool) -> float:
    return math.log2(value) if logarithmic else value


def _ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    """About five round numbers from low to high."""
    if logarithmic:
        first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
        step = max(1, round((last - first) / 4))
        return [2.0**power for power in range(first, last + 1, step)]
    span = (high - low) or 1.0
    step_size = 10 ** math.floor(math.log10(span))
    step_size *= 1 if span / step_size >= 4 else 0.5 if span / step_size >= 2 else 0.2
    count = math.floor((high - low) / step_size) + 1
    start = math.ceil(low / step_size - 1e-9)
    return [
        round((start + k) * step_size, 10)
        for k in range(count)
        if (start + k) * step_size <= high + 1e-9
    ]
