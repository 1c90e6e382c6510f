import itertools
import json
import math
import random
import re
import resource
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from browser import CHROMIUM, Look, visits
from conftest import (
    ROOT,
    assert_refused,
    called,
    ended,
    made,
    make_trial,
    orchestrate,
    refused,
    train_all,
    wait_for,
)
from plotly.subplots import make_subplots
from test_archive import random_archive
from test_frontier import write_run

from orchestrator.analysis import Estimate
from orchestrator.analysis.cost import devices_of
from orchestrator.analysis.scale_laws import ScalePoint, laws_of
from orchestrator.cli import live
from orchestrator.files.places import Place
from orchestrator.planning.sweep_file import load_sweep
from orchestrator.records import Goal, Range, Status, Trial
from orchestrator.report import Source, gathering, write_report_of
from orchestrator.report import page as report_page
from orchestrator.report.answer import steps_to_goal
from orchestrator.report.comparisons import relative_steps
from orchestrator.report.content import Curve, Listed, Panel, Tried
from orchestrator.report.cost import costs as costs_on_page
from orchestrator.report.gathering import panels_of
from orchestrator.report.page import Figures, price_of, write_report
from orchestrator.report.panel import panel_section
from orchestrator.report.scales import laws_fold
from orchestrator.report.style import COLOURS, Drawing, mark
from orchestrator.report.trials import all_tried, outcomes, tried_of
from orchestrator.results import BestRow, FrontierRow, RunFiles, StepTime, column_of, frontier_of
from orchestrator.results.archive import import_archive
from orchestrator.results.frontier import Leader
from orchestrator.results.repeats import WinnerRepeats
from orchestrator.results.tables import tables_of

ROW = FrontierRow(
    workload="digits/mlp",
    recipe="sgd",
    optimizer="sgd",
    batch_size=1,
    goal="val/error < 0.04",
    ranks=1,
    reached=True,
    censored=False,
    steps=1024,
    resolution=8,
    trial=3,
    seed=5,
    params={"learning_rate": 0.1},
    metrics={"val/error": 0.03},
    seconds=1.0,
    trials={"reached": 20},
    trials_used=20,
    warnings=(),
)
GOAL = Goal.parse(ROW.goal)
ROWS = [replace(ROW, batch_size=2**k, steps=2 ** (10 - k)) for k in range(6)]
UNREACHED = replace(ROW, batch_size=64, reached=False, steps=None, params=None, trial=None)


def page(path: Path, rows: list[FrontierRow]) -> str:
    """With every kind of figure, and whatever is in the rows in the figures, too."""
    name = rows[0].recipe
    curve = Curve(recipe=name, batch_size=1, trial=3, steps=[0, 1, 9], values=[0.9, 0.5, 0.03])
    table = pa.table(
        {
            "trial": [0, 1, 2], "status": ["reached", "diverged", name],
            "counted": [True, True, False], "steps": [9, 2, 0], "steps_to_goal": [9, None, None],
            column_of(name): [0.1, 10.0, 0.3], column_of("momentum"): [0.9, 0.99, None],
        }
    )  # fmt: skip
    listed = Listed(
        rows=[{"batch_size": size, **row} for size in (1, 2) for row in table.to_pylist()],
        counts={1: (1, 3), 2: (1, 3)},
    )
    tried = Tried(x=name, y="momentum", y_from_one=True, sizes=[1, 2])
    best = BestRow(
        workload="w", recipe=name, optimizer=name, batch_size=1, metric="val/error", value=0.1,
        within="steps=9", trained_enough=True, censored=False, step=9, trial=1, seed=1,
        params=None, metrics={"val/error": 0.1, "train/error": 0.05}, trials_used=2,
    )  # fmt: skip
    bests = [best, replace(best, batch_size=2), replace(best, batch_size=4, value=None)]
    bests += [replace(one, within="epochs=3") for one in bests]
    times = [
        StepTime(workload="w", recipe=name, batch_size=size, ranks=1, seconds=0.1 + size / 100)
        for size in (1, 100)
    ]
    workloads = dict.fromkeys((row.workload, row.goal) for row in rows)
    panels = [
        Panel(
            workload=workload, goal=Goal.parse(goal), curves={name: [curve]}, tried={name: tried},
            listed={name: listed},
            quality={name: bests, "cut": [replace(best, censored=True)]},
            devices=devices_of(times), price=2,
            rows=[*mine, *([] if name in {row.recipe for row in mine} else [rows[0]])],
        )
        for workload, goal in workloads
        for mine in [[row for row in rows if (row.workload, row.goal) == (workload, goal)]]
    ]  # fmt: skip
    write_report(
        Place.at(path / "report.html"), title=name, panels=panels,
        provenance={"python": name}, sweep_file=f"name: {name}",
    )  # fmt: skip
    return (path / "report.html").read_text()


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
HOSTILE = {
    "workload": EVIL, "recipe": EVIL, "optimizer": EVIL, "warnings": (EVIL,),
    "params": {EVIL: 0.1, "momentum": 0.9, "kind": EVIL},
    "metrics": {EVIL: 0.1}, "trials": {EVIL: 3},
}  # fmt: skip


def without_plotly(text: str) -> str:
    return max(re.split(r"<script>.*?</script>", text, maxsplit=1, flags=re.S), key=len)


def words_of(panel: Panel) -> str:
    """What a panel says; of figures their titles."""
    html = panel_section(1, panel, lambda _, title, *more: f"({title})", several=False)
    return " ".join(re.sub("<.*?>", " ", html).split())


def test_the_figure_shows_every_point_and_a_perfect_line_of_each_curve() -> None:
    figure = steps_to_goal([UNREACHED, *reversed(ROWS)]).as_plotly()
    _, perfect, line, missing = figure.data
    assert list(line.x) == [*(row.batch_size for row in ROWS), UNREACHED.batch_size]
    assert list(line.y) == [*(row.steps for row in ROWS), None]  # through which no line leads
    assert all(x * y == 1024 for x, y in zip(perfect.x, perfect.y, strict=True))
    assert list(missing.x) == [UNREACHED.batch_size]
    assert 1024 < missing.y[0] <= 10 ** figure.layout.yaxis.range[1]
    assert "the goal was not reached<br>trials: 20 reached" in missing.hovertext[0]
    other = [replace(row, recipe="other", steps=3 * (row.steps or 0)) for row in ROWS]
    drawn = steps_to_goal([*ROWS, *other]).as_plotly().data
    lines = [one for one in drawn if one.name == "perfect scaling"]
    assert [one.x[0] and one.x[0] * one.y[0] for one in lines] == [None, 1024, 3072]


def test_where_no_goal_was_reached_all_crosses_are_within_the_axes() -> None:
    rows = [replace(UNREACHED, recipe=recipe) for recipe in "abc"]
    figure = steps_to_goal(rows).as_plotly()
    for axis, letter in ((figure.layout.xaxis, "x"), (figure.layout.yaxis, "y")):
        low, high = (10**end for end in axis.range)
        assert all(low < one[letter][0] < high for one in figure.data if one.hovertext)


def test_a_caption_speaks_only_of_what_its_figure_shows() -> None:
    def caption(*rows: FrontierRow) -> str:
        said: list[str] = []
        panel = Panel(workload=ROW.workload, goal=GOAL, rows=rows)
        panel_section(1, panel, lambda *shown: said.append(shown[-1]) or "", several=False)
        return said[0]

    assert caption(UNREACHED).startswith("Crosses")
    again = WinnerRepeats(
        count=3, reached=3, median=9, low=5, high=11, confidence=0.7, resolution=1
    )
    both = caption(replace(ROW, repeats=again), replace(UNREACHED, recipe="other"))
    assert "median of repeats" in both
    assert "Without repeats" not in both


def test_a_single_repeat_has_no_interval_and_one_from_step_0_has() -> None:
    one = WinnerRepeats(count=1, reached=1, median=9, low=9, high=9, confidence=0, resolution=1)
    two = replace(one, count=2, reached=2, low=0, high=18, confidence=0.5)
    said = [steps_to_goal([replace(ROW, repeats=again)]).data[-1] for again in (one, two)]
    first, second = (trace["hovertext"][0] for trace in said)
    assert "%" not in first
    assert "(0 to 18, 50%)" in second


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (3, 3), (4, 3), (7, 3)])
def test_panels_lie_as_those_of_plotly(count: int, columns: int) -> None:
    rows, gaps = math.ceil(count / columns), (0.08, 0.1)
    titles = [f"panel {number}" for number in range(count)]
    ours = Drawing(titles, columns=columns, gaps=gaps, one_y=rows == 1).as_plotly().layout
    theirs = make_subplots(
        rows, columns, horizontal_spacing=gaps[0], vertical_spacing=gaps[1],
        subplot_titles=titles, shared_yaxes=rows == 1,
    ).layout  # fmt: skip
    for number in range(1, count + 1):
        for axis in (f"xaxis{number}", f"yaxis{number}"):
            assert ours[axis].domain == pytest.approx(theirs[axis].domain)
            for part in ("anchor", "matches", "showticklabels"):
                assert ours[axis][part] == theirs[axis][part]
    for mine, other in zip(ours.annotations, theirs.annotations, strict=True):
        assert (mine.text, mine.x, mine.y) == (other.text, *map(pytest.approx, (other.x, other.y)))


def test_the_page_holds_the_answer_and_asks_the_network_for_nothing(tmp_path: Path) -> None:
    text = without_plotly(page(tmp_path, [*ROWS, UNREACHED]))
    assert (
        "sgd: no batch size up to 32 takes a fifth more examples than the fewest; steps still"
        in text
    )
    assert "is not shown for cut" in text
    assert "not reached" in text
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)


def test_the_numbers_of_many_curves_are_a_table(tmp_path: Path) -> None:
    rows = [replace(row, recipe=f"r{n}") for n in range(len(COLOURS) + 1) for row in ROWS]
    text = without_plotly(page(tmp_path, rows))
    cells = re.findall(r'<th scope="row" class="(dot.*?)" .*?>(r\d)</th><td>(.*?)</td>', text)
    assert [name for _, name, _ in cells] == [f"r{n}" for n in range(len(COLOURS) + 1)]
    assert {dot: at for dot, _, at in cells} == {"dot": "over 32", "dot hollow": "over 32"}
    assert mark(0)["line"] != mark(len(COLOURS))["line"]


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    rows = [replace(row, **HOSTILE) for row in ROWS]
    assert EVIL not in page(tmp_path, [*rows, *ROWS])
    quoted = [replace(row, recipe="<b>\"'") for row in ROWS]
    assert steps_to_goal(quoted).data[-1]["name"] == "&lt;b&gt;\"'"  # which plotly shows as it is


def test_curves_are_compared_at_one_batch_size() -> None:
    other = [replace(row, steps=3 * row.steps) for row in ROWS[2:] if row.steps]
    figure = relative_steps({"a": ROWS, "b": other}, 4)
    first, second, perfect = figure.as_plotly().data
    assert list(first.y) == [4, 2, 1, 0.5, 0.25, 0.125]
    assert list(second.y) == [1, 0.5, 0.25, 0.125]
    assert all(x * y == 4 for x, y in zip(perfect.x, perfect.y, strict=True))


def test_only_devices_that_were_timed_are_recommended_and_cards_that_agree_are_one() -> None:
    def told(ranks: int) -> str:
        """The page's text. A step takes 100 ms and 10 ms for each example of a device."""
        times = [
            StepTime(workload="w", recipe="sgd", batch_size=size, ranks=count, seconds=seconds)
            for size in (1, 4, 32)
            for count in (1, min(size, ranks))
            for seconds in [0.1 + 0.01 * math.ceil(size / count)]
        ]
        return words_of(
            Panel(
                workload="w", goal=GOAL, rows=ROWS, devices=devices_of(times),
                price=3600,
            )
        )  # fmt: skip

    alone, together = told(1), told(4)
    point = "32 sgd 32 steps (error unknown), 1,024 examples"
    assert f"Fastest, balanced and cheapest {point}; 13.4 s on 1 device, 13.4 in money" in alone
    assert f"Fastest and balanced {point}; 5.76 s on 4 devices" in together
    assert f"Cheapest {point}; 13.4 s on 1 device" in together


def test_marks_are_filled_where_nothing_is_better_for_any_number_of_recipes() -> None:
    """Also of recipes whose marks are hollow elsewhere."""
    count = len(COLOURS) + 2
    rows = [replace(row, recipe=f"r{n}", steps=(count - n) * (row.steps or 0))
            for n in range(count) for row in ROWS]  # fmt: skip
    shown: list[Drawing] = []
    costs_on_page(Panel(workload="w", goal=GOAL, rows=rows), lambda it, *_: shown.append(it) or "")
    *others, best = shown[0].as_plotly().data
    times = [
        StepTime(workload="w", recipe="r0", batch_size=size, ranks=1, seconds=size)
        for size in (1, 32)
    ]
    timed = Panel(workload="w", goal=GOAL, rows=rows, devices=devices_of(times))
    costs_on_page(timed, lambda it, *_: shown.append(it) or "")
    told = [" ".join(trace["hovertext"]) for trace in shown[1].data[:2]]
    assert ["as measured of the winner" in text for text in told] == [False, True]
    assert len({str(mark(number)) for number in range(gathering.MOST_IN_DETAIL)}) == 40
    # Of equal numbers of examples, the fewest steps are best.
    assert [symbol.endswith("-open") for symbol in best.marker.symbol] == 5 * [True] + [False]
    assert all(symbol.endswith("-open") for one in others for symbol in one.marker.symbol)


def test_points_that_measurements_far_apart_leave_uncertain_are_told() -> None:
    def told(*resolutions: int) -> str:
        rows = [replace(row, resolution=r) for row, r in zip(ROWS, resolutions, strict=False)]
        return words_of(Panel(workload="w", goal=GOAL, rows=rows)).partition("Mind: ")[2]

    assert told(102, 51) == ""
    said = told(103, 51, 256)
    assert said.startswith("Measurements lie more than a tenth of the steps apart at 2 of 3 points")
    assert "sgd at batch size 4 takes 256 steps, or up to 256 fewer." in said
    # A tenth of the steps, halved, times the batch size.
    assert "evaluate: {spacing: 0.05, min_examples: 51}" in said
    # Each step was measured, so nothing can be done.
    few = [replace(ROW, batch_size=2048, steps=2, resolution=1)]
    assert "Mind" not in words_of(Panel(workload="w", goal=GOAL, rows=few))


def test_both_answers_stand_on_the_page_where_a_goal_is_lost_again() -> None:
    def again(steps: float, **more: object) -> WinnerRepeats:
        around = tuple(round(steps * share) for share in (0.98, 0.99, 1, 1.01, 1.02))
        return WinnerRepeats(
            trial=3, params={"learning_rate": 0.1}, count=5, reached=5, median=steps,
            low=around[0], high=around[-1], confidence=0.94, resolution=1, steps=around, **more,
        )  # fmt: skip

    def told(lost: int, held: Callable[[int], float | None]) -> str:
        rows = [
            replace(ROW, batch_size=size, repeats=again(first, lost=lost, held=holds))
            for size in (2**k for k in range(0, 13, 2))
            for first in [1e4 * (1 + 32 / size)]
            for steps in [held(size)]
            for holds in [
                again(steps) if steps else replace(again(1), reached=2, median=None, high=None)
            ]
        ]
        return words_of(Panel(workload="w", goal=GOAL, rows=rows))

    same = told(0, lambda size: 1e4 * (1 + 32 / size))
    assert "Mind" not in same
    moved = told(4, lambda size: 1.2e4 * (1 + 200 / size))
    assert "Mind: sgd: 28 of 35 repeats lost the goal again. With a goal that holds for 3" in moved
    assert re.search(r"sgd: [^.]+; critical batch size 32 \(", moved)
    assert re.search(r"holds for 3 measurements, [^.]+; critical batch size 200 \(", moved)
    never = told(5, lambda size: 1.2e4 * (1 + 200 / size) if size > 1 else None)
    assert "without batch size 1, where it did not hold in time" in never
    never = told(5, lambda size: 1.2e4 * (1 + 200 / size) if size > 4 else None)
    assert "without batch sizes 1 and 4, where" in never


def test_of_a_curve_the_figure_shows_all_that_its_points_allow() -> None:
    bent = [replace(ROW, batch_size=2**k, steps=round(1e4 * (1 + 32 / 2**k))) for k in range(8)]
    panel = Panel(workload="w", goal=GOAL, rows=bent)
    readings = panel_section(1, panel, lambda *told: told[3], False)
    assert "Dotted: the middle of all bends that the points allow, nine tenths shaded." in readings
    fitted = {one.recipe: one.curves for one in panel.scalings if one.curves}
    drawn = {line.name: line for line in steps_to_goal(bent, fitted).as_plotly().data}
    around, middle = drawn["sgd, 90 %"], drawn["sgd, bend"]
    assert min(around.y) < min(middle.y) < max(middle.y) < max(around.y)


def test_whiskers_are_told_where_they_are_drawn() -> None:
    again = WinnerRepeats(
        trial=3, params={"learning_rate": 0.1}, count=2, reached=2, median=1024, low=1000,
        high=1048, confidence=0.5, resolution=8, steps=(1000, 1048),
        medians=((1, 1000.0, 10), (2, 1100.0, 5), (3, 1024.0, 5)),
    )  # fmt: skip
    once = replace(again, count=1, reached=1, steps=(1024,))
    leaders = tuple(Leader(trial=n, steps=1024 + n, resolution=8) for n in range(3))
    for repeats, searched, said in (
        (again, None, "repeats; its whiskers show where it would lie with other seeds."),
        (again, 1, "repeats; its whiskers show where it would lie with other seeds and other tr"),
        (once, 1, "A point is a single repeat. Without whiskers,"),
        (None, None, "any trial. Without whiskers,"),
        (None, 1, "any trial; its whiskers show where it would lie with other trials."),
    ):
        rows = [replace(r, repeats=repeats, searched=searched, leaders=leaders) for r in ROWS[:2]]
        panel = Panel(workload="w", goal=GOAL, rows=rows)
        assert said in panel_section(1, panel, lambda *told: told[3], several=False)


def test_the_fewest_steps_of_curves_that_are_compared_may_not_be_the_fewest_of_all() -> None:
    other = [replace(row, recipe="other", steps=2 * row.steps) for row in ROWS]
    few = [replace(row, recipe="few", steps=9) for row in ROWS]
    said = words_of(Panel(workload="w", goal=GOAL, rows=[*ROWS, *other, *few]))
    assert "over sgd, which takes the fewest steps of those in the table above." in said


def test_studies_whose_repeats_reached_the_goal_are_counted() -> None:
    """Of a recipe with nothing to search, the only trial may miss what most repeats reach."""
    again = WinnerRepeats(count=3, reached=2, median=9, low=8, high=9, confidence=0, resolution=1)
    text = words_of(Panel(workload="w", goal=GOAL, rows=[replace(UNREACHED, repeats=again)]))
    assert "1 of 1 studies reached the goal" in text


def test_nothing_is_said_of_curves_that_are_not_there() -> None:
    for rows, drawn in (([UNREACHED], False), (ROWS, True)):
        panel = Panel(workload="w", goal=GOAL, rows=rows)
        said = panel_section(1, panel, lambda *told: told[3], several=False)
        assert [text in said for text in ("Dashed:", "minima over trials")] == [drawn, drawn]


def test_a_power_of_nothing_has_no_sign() -> None:
    rows = [replace(row, params={"lr": 0.1 - 1e-7 * row.batch_size}) for row in ROWS]
    assert "B^0.00" in words_of(Panel(workload="w", goal=GOAL, rows=rows))


DRAWN_OF_ALL = 17
"""Figures of two workloads and goals."""

SORTED = """(async () => {
    const table = document.querySelector("table.trials");
    const head = [...table.tHead.rows[0].cells].find(cell => cell.innerText === "Steps trained");
    const seen = [];
    for (const _ of [1, 2]) {
        head.firstChild.focus();
        document.activeElement.click();
        seen.push([head.getAttribute("aria-sort"),
            ...[...table.tBodies[0].rows].map(row => row.cells[head.cellIndex].innerText)]);
    }
    return seen;
})()"""

OPEN = """new Promise(done => setTimeout(() => done(
    [...document.querySelectorAll("details[open]")].map(fold => fold.id)), 100))"""

PRINTED = """(() => { dispatchEvent(new Event("beforeprint")); const plots =
    [...document.querySelectorAll(".plot")].map(plot => plot.querySelector(".main-svg") !== null);
    dispatchEvent(new Event("afterprint"));
    return [plots.every(Boolean), document.querySelectorAll("details[open]").length]; })()"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_in_a_browser(tmp_path: Path) -> None:
    """Everything at once: several goals, hostile names, all kinds of figures."""
    hostile = HOSTILE | {"recipe": EVIL + 60 * "long"}
    evil = [replace(row, **hostile, goal="val/error < 0.01") for row in ROWS]
    page(tmp_path, [*ROWS, UNREACHED, *evil])
    written, picture = tmp_path / "report.html", tmp_path / "picture.png"
    looks = [
        Look(page=written, width=390),
        Look(page=written, width=1400, dark=True, picture=picture),
    ]
    for seen in visits(looks, tmp_path):
        assert seen.errors == []
        assert seen.requests == []
        assert len(seen.drawn) == DRAWN_OF_ALL
        assert all(seen.drawn)
        assert (seen.wider, seen.overlaps) == (0, [])
        assert seen.violations == []
    assert picture.stat().st_size > 50_000


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_the_first_screen_holds_the_answer(tmp_path: Path, sweep_file: Callable[..., Path]) -> None:
    repeated = {"repeats": {"count": 2}, "recipes": ["sgd", "momentum"], "batch_sizes": [8, 16, 32]}
    trained(tmp_path / "whole", sweep_file(**repeated))
    shutil.copytree(tmp_path / "whole", tmp_path / "unfinished")
    shutil.rmtree(next(tmp_path.glob("unfinished/trials/*/*/batch_size=32")))
    random_archive(tmp_path / "tree", random.Random(5))
    import_archive(tmp_path / "tree", RunFiles(tmp_path / "archive"))
    pages = {}
    for name in ("whole", "unfinished", "archive"):
        run, pages[name] = RunFiles.open(tmp_path / name), tmp_path / f"{name}.html"
        going_on = 900 if name == "unfinished" else None
        source = Source(run=run, rows=frontier_of(run, [Goal.parse("val/error < 0.5")]))
        write_report_of([source], Place.at(pages[name]), reload_seconds=going_on)
    page(tmp_path, ROWS)
    long = tmp_path / "long"
    long.mkdir()
    page(long, [replace(row, recipe=f"{n}{'x' * 90}") for n in range(12) for row in ROWS])
    looks = [
        Look(
            page=long / "report.html", width=1000, unfolded=False, checked=False,
            scripts=("document.querySelector('.first .nsewdrag').getBoundingClientRect().height",),
        ),
        Look(page=pages["whole"], width=390),
        Look(page=pages["archive"], width=390),
        # A page that reloads itself is not accessible, which cannot be helped.
        Look(page=pages["unfinished"], width=1280, height=800, checked=False),
        Look(page=tmp_path / "report.html", width=1280, height=800, unfolded=False, checked=False),
        Look(
            page=pages["whole"], width=1280, height=800, checked=False, anchor="#trials",
            scripts=(OPEN, SORTED, PRINTED),
        ),
    ]  # fmt: skip
    found = visits(looks, tmp_path)
    for look, seen in zip(looks, found, strict=True):
        where = f"{look.page.name} at {look.width}"
        assert (seen.errors, seen.requests, seen.violations) == ([], [], []), where
        assert seen.wider == 0, where
        assert all(seen.drawn), where
        if look.width == 1280:
            assert max(seen.first) < 800, where
    assert found[0].told[0] > 150  # the curves, below the names of them all
    opened, (up, down), printed = found[-1].told
    assert opened == ["trials"]
    assert (up[0], down[0]) == ("ascending", "descending")
    steps = [int(text) for text in up[1:]]
    assert steps == sorted(steps)
    assert [int(text) for text in down[1:]] == steps[::-1]
    assert printed == [True, 1]


@pytest.mark.parametrize(
    "curves",
    [
        [],
        [("failed", [])],
        [("reached", [0.1])],
        [("reached", [math.nan, 0.1]), ("diverged", [math.nan, math.nan])],
        [("exhausted", [0.5] * 6), ("dominated", [0.5, math.inf])],
        [("exhausted", [])],
    ],
)
def test_whatever_a_run_holds_it_has_a_page(
    curves: list[tuple[Status, list[float]]], tmp_path: Path
) -> None:
    run = write_run(tmp_path, curves, "val/error < 0.2")
    page = Place.at(tmp_path / "page.html")
    write_report(
        page, title="t", panels=panels_of([Source(run=run, rows=frontier_of(run))]),
        provenance={}, sweep_file="",
    )  # fmt: skip
    assert "The answer" in page.read_text()


RATE = {"learning_rate": {"low": 0.01, "high": 1.0, "scale": "log"}}
RULE = {"learning_rate": {"rule": "linear", "base": 0.05, "at_batch_size": 16}}
LADDER = {
    "recipes": [
        {"name": "rule", "optimizer": "sgd", "space": RULE},
        {"name": "warm", "optimizer": "sgd", "space": RULE,
         "schedule": {"warmup_fraction": 0.5, "decay": "cosine"}},
        {"name": "smooth", "optimizer": "sgd",
         "space": {**RATE, "label_smoothing": {"options": [0.0, 0.1]}}},
        {"name": "grid", "optimizer": "sgd", "space": RATE,
         "schedule": {"warmup_fraction": {"low": 0, "high": 0.5}},
         "search": {"algorithm": "grid", "grid": {"learning_rate": 2, "warmup_fraction": 2}}},
    ],
    "stop": {"at_goal": False},
    "evaluate": {"train_examples": 50},
    "report": {"price_per_device_hour": 3},
}  # fmt: skip


def trained(folder: Path, sweep: Path) -> RunFiles:
    run, planned = made(folder, load_sweep(sweep))
    train_all(run, planned)
    return run


@pytest.mark.dear
def test_what_a_run_was_asked_for_is_on_its_page(
    tmp_path: Path, sweep_file: Callable[..., Path]
) -> None:
    run = trained(tmp_path / "run", sweep_file(**LADDER))
    rows = frontier_of(run)
    (panel,) = panels_of([Source(run=run, rows=rows)], price_of(run))
    sizes = sorted({row.batch_size for row in rows})
    tried = panel.tried["grid"]
    assert (tried.x, tried.y, tried.linear) == (
        "learning_rate", "warmup_fraction", ["warmup_fraction"]
    )  # fmt: skip
    assert {gap.batch_size for gap in panel.gaps} == set(sizes)
    # On a busy machine, step times may be too odd to be used.
    assert all(one.money is not None for cost in panel.costs for one in cost.priced)
    assert panel.advice is None  # of three batch sizes


def test_the_page_of_a_running_sweep_is_tried_again_where_no_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Semaphore(0)

    def refuses(*_: object, **__: object) -> NoReturn:
        tried.release()
        raise BlockingIOError

    monkeypatch.setattr(live.subprocess, "Popen", refuses)
    with live.rewritten(RunFiles(tmp_path), every_seconds=0.01):
        assert all(tried.acquire(timeout=60) for _ in range(2))


@pytest.mark.slow
def test_while_a_run_goes_on_its_page_is_rewritten_and_reloads(
    tmp_path: Path, sweep_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PAUSE", 0)
    run, planned = made(tmp_path / "run", load_sweep(sweep_file()))
    written = tmp_path / "run/report.html"
    with live.rewritten(run, every_seconds=0.5):
        wait_for(written.exists)
        assert "not yet" in written.read_text()
        train_all(run, planned)
        wait_for(lambda: "Fewest steps: " in written.read_text())
    assert '<meta http-equiv="refresh" content="1">' in written.read_text()
    called("report", run.place)
    assert "refresh" not in without_plotly(written.read_text())


def test_metaparameters_that_not_every_trial_has(tmp_path: Path) -> None:
    """As under a condition; until one of them comes up there isn't even a column."""
    ranges = {name: Range(low=0.1, high=0.2, scale="log") for name in ("decay", "rate")}
    study = replace(make_trial().study, space=ranges)
    run = RunFiles(tmp_path)
    run.create({"name": "x"}, [study], {})
    for index, params in enumerate([{"rate": 0.1}, {"rate": 0.2}, {"rate": 0.1, "decay": 0.1}]):
        tables = outcomes(run, GOAL, [study])
        assert tried_of([study], tables) is None
        run.write(ended(replace(make_trial(index=index), study=study, params=params), "failed"))
    found = tried_of([study], outcomes(run, GOAL, [study]))
    assert found is not None
    assert found.sizes == [study.batch_size]


def test_a_program_of_the_second_run_is_told_as_well() -> None:
    one = Panel(workload="w", goal=GOAL, rows=ROWS)
    other = replace(one, is_program=True)
    assert gathering._joined(one, other).is_program


def test_step_times_of_runs_on_different_machines_are_not_compared() -> None:
    def panel(recipe: str, slow: float) -> Panel:
        times = [
            StepTime(workload="w", recipe=recipe, batch_size=size, ranks=1, seconds=size * slow)
            for size in (8, 512)
        ]
        return Panel(workload="w", goal=GOAL, rows=[], devices=devices_of(times))

    for slow, used in ((1.0, True), (5.0, False)):
        runs = panel("a: sgd", 1.0), panel("b: sgd", slow), panel("c: sgd", 1.0)
        every = gathering._timed_alike(reduce(gathering._joined, runs))
        assert (bool(every.devices), not every.doubts) == (used, used)


def test_axes_of_laws_keep_the_names_of_metrics() -> None:
    points = [
        ScalePoint(workload="<b>w", at={"data": size}, value=Estimate(value=v, low=v, high=v))
        for size, v in ((1e6, 8.0), (2e6, 17.0), (4e6, 31.0))
    ]
    (law,) = laws_of("B_crit until val/mAP > 0.5", "sgd", points)
    figures = Figures()
    laws_fold([law], figures.show, opened=True)
    drawn = figures.drawn[0][2]
    assert next(drawn.axes("y"))["title"]["text"] == "B_crit until val/mAP &gt; 0.5"
    assert drawn.data[0]["hovertext"][0].startswith("&lt;b&gt;w")


@pytest.mark.dear
def test_doubts_about_step_times_say_of_which_run() -> None:
    run = RunFiles.open(ROOT / "atlas/runs/quickstart.zip")
    source = Source(run=run, rows=frontier_of(run), label="mine")
    source.__dict__["_step_times"] = [  # of which the property would read those of the run
        StepTime(workload="digits/mlp", recipe=name, batch_size=size, ranks=1, seconds=size * slow)
        for name, slow in (("sgd", 0.01), ("momentum", 0.1))
        for size in (8, 64, 512)
    ]
    (panel,) = source.answers(None)
    (doubt,) = panel.doubts
    assert doubt.count("mine: ") == 2  # of a pair of recipes


def test_several_runs_on_one_page(tmp_path: Path) -> None:
    both, out = (tmp_path / "first", tmp_path / "second"), tmp_path / "page.html"
    for run in both:
        write_run(run, [("reached", [0.5, 0.1])], "val/error < 0.2", imported=True)
    with refused("missing-option", "-o"):
        called("report", *both)
    with refused("given-twice"):
        called("report", both[0], both[0])
    called("report", *both, "-o", out)
    text = without_plotly(out.read_text())
    assert "first: test" in text
    assert "second: test" in text
    called("report", both[0])
    assert "first: test" not in (both[0] / "report.html").read_text()
    found = json.loads(called("report", *both, "--json"))
    assert [one["run"] for one in found] == ["first", "second"]
    with refused("unknown-name", "'mnist/*'", "digits/mlp"):
        called("report", *both, "--goal", "mnist/*: val/error<0.1", "-o", out)


def write_large_run(path: Path, recipes: int, trials: int) -> RunFiles:
    """Trials of all recipes at one batch size; the last one of all reaches the goal first."""
    space = {
        "learning_rate": Range(low=0.01, high=1.0, scale="log"),
        "momentum": Range(low=0.5, high=0.99, scale="reverse_log"),
    }
    plain = replace(make_trial(goals=["val/error < 0.2"]).study, space=space, trials=trials)
    studies = [replace(plain, recipe=f"recipe-{number}") for number in range(recipes)]
    run = RunFiles(path)
    for number, study in enumerate(studies):
        finished = []
        for index in range(trials):
            params = {"learning_rate": 0.01 * (1 + index), "momentum": 0.5}
            trial = Trial(study=study, index=index, seed=0, params=params)
            before = number * trials + index
            one = ended(trial, "reached", {2 + recipes * trials - before: 0.1})
            finished.append(replace(one, started=float(before), where="machine:1"))
        run.write_study(study.key, *tables_of(finished))
    stop = {"at_goal": True, "dominated": None}
    run.create({"name": "large", "seed": 0, "stop": stop}, studies, {})
    return run


@pytest.mark.slow
def test_the_page_of_many_recipes_is_no_larger_than_one_can_read(tmp_path: Path) -> None:
    run = write_large_run(tmp_path / "run", recipes=200, trials=3)
    write_report_of([Source(run=run, rows=frontier_of(run))], run.place / "report.html")
    text = (run.place / "report.html").read_text()
    assert len(text) < 5_500_000  # plotly itself has 4.7
    assert "40 of 200 recipes are drawn" in text
    assert "<b>recipe-199: every trial by learning_rate and momentum</b>" in text
    assert "recipe-0: every trial" not in text
    assert '<th scope="row" class="text">recipe-0</th>' in text


def test_of_many_trials_the_best_and_some_of_the_others_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MOST_LISTED", 1000)
    run = write_large_run(tmp_path / "run", recipes=1, trials=3000)
    (panel,) = panels_of([Source(run=run, rows=frontier_of(run))])
    assert panel.listed["recipe-0"].counts == {32: (3000, 3000)}
    trials = sorted(row["trial"] for row in panel.listed["recipe-0"].rows)
    assert len(trials) == 1000
    assert trials[-500:] == [*range(2500, 3000)]
    assert [trials[0], trials[499]] == [0, 2499]
    assert max(b - a for a, b in itertools.pairwise(trials)) <= 6
    text = panel_section(0, panel, lambda *said: said[2], False)
    assert "1,000 of 3,000 trials" in text
    assert "3,000 of 3,000 at 32. 1,000 of these 3,000 trials are drawn." in text


@pytest.mark.parametrize("steps", [None, 9])
def test_only_trials_that_ended_before_the_goal_might_have_reached_it(steps: int | None) -> None:
    row = {"batch_size": 2, "trial": 0, "status": "paused", "counted": True, "steps_to_goal": steps}
    listed = {"a": Listed(rows=[{**row, "steps": 9}], counts={2: (int(steps is not None), 1)})}
    tried = {"a": Tried(x="x", y="y", y_from_one=False, sizes=[2])}
    panel = Panel(workload="w", goal=GOAL, rows=ROWS, listed=listed, tried=tried)
    text = all_tried(panel, lambda *said: said[2])
    assert ("more might have reached the goal" in text) is (steps is None)


def test_a_price_of_nothing_is_not_that_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = RunFiles(tmp_path), list[float | None]()
    sweep = {"name": "x", "seed": 0, "report": {"price_per_device_hour": 3}}
    run.create(sweep, [make_trial().study], {})
    monkeypatch.setattr(report_page, "panels_of", lambda _, price: asked.append(price) or [])
    for price in (None, 0.0):
        write_report_of([Source(run=run, rows=[])], run.place / "report.html", price=price)
    assert asked == [3, 0]


@pytest.mark.slow
def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    """As a limit on the size of files, which fails in the same way."""
    write_run(tmp_path, [("reached", [0.1])], "val/error < 0.2", imported=True)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
    result = orchestrate("report", tmp_path, preexec_fn=limit)
    assert_refused(result, "unwritable", f"{tmp_path}/report.html", "File too large")
    assert result.stderr.count("\n") == 1
    assert not [*tmp_path.glob("*report*")]
