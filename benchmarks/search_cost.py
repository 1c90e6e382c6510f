"""What exact stopping saves: the small quickstart with and without it (`stop.dominated`).

Without it, a trial goes on until it reaches the goal, diverges or has used up its budget. The same
sweep is run (a) with its own budgets, and (b) with every study's budget four times as many steps as
its frontier has: as somebody gives who has a fair idea of how long training takes.

examples    trained on in all trials, those trained on again after a pause included; steps likewise
seconds     a sweep's wall time once Ray runs and the studies are known; two CPUs share the trials,
            Tune and this process
command     wall time of `orchestrate sweep`, from start to exit: (a) only

All of it is about the search: without repeats, and the winner of each study alone is kept.

The sweep with its own budgets is run once more with trials one at a time (`resources.stack: 1`):
trials that are trained together race each other at once, but begin before others have ended. And
once more so that the five best trials of each study are known exactly (`stop.keep: 5`), and not
the winner alone.

Bounds: the same frontier, steps and trials, with exact stopping and without; the same five best
trials, steps and order; in (b) at most half the examples; in (a) at most half the seconds. Trained
together, at most 1.05 times the examples.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from command_line import FEW_TRIALS, Training, orchestrate, parser_of, print_result, training
from tables import Table, bounded

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import find_sweep_file, load_sweep
from orchestrator.records import Study, StudyKey
from orchestrator.results import RunFiles, frontier_of

LAVISH = 4

WITHOUT = "stop.dominated=false"
"""Turns exact stopping off."""

ALONE = "resources.stack=1"
"""Turns stacks off."""

KEEP = 5
"""Of the best trials that are compared."""

MIN_SAVING = 2
MIN_SPEED_UP = 2
MAX_STACKED = 1.05

SMOKE_SWEEP = {
    "name": "search-cost",
    "workloads": ["digits/mlp"],
    "goals": ["val/error < 0.5"],
    "recipes": ["sgd"],
    "batch_sizes": [64],
    "search": {"trials": 1},
    "budget": {"steps": 60},
}


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a sweep found, and at what cost."""

    frontier: dict[tuple[StudyKey, str], tuple[int | None, int | None]]
    """Steps and trial for each study and goal."""
    best: dict[tuple[StudyKey, str], list[tuple[int, int]]]
    """The same of the best trials that are known for certain, at most `KEEP`."""
    examples: dict[StudyKey, int]
    seconds: float
    busy_share: float | None
    """None where all trials started at once."""

    @property
    def total(self) -> int:
        return sum(self.examples.values())

    @property
    def steps(self) -> int:
        return sum(examples // key.batch_size for key, examples in self.examples.items())


def search(path: Path, train: Training, sweep: Sweep, studies: Sequence[Study]) -> Search:
    run = RunFiles(path)
    began = time.perf_counter()
    assert train(run, sweep, studies)
    seconds = time.perf_counter() - began
    session = run.sessions()[-1]
    keys = [study.key for study in studies]
    rows = frontier_of(run)
    return Search(
        frontier={(row.key, row.goal): (row.steps, row.trial) for row in rows},
        best={
            (row.key, row.goal): [(one.steps, one.trial) for one in row.leaders[:KEEP]]
            for row in rows
        },
        examples={key: session["examples_of"].get(str(key), 0) for key in keys},
        seconds=seconds,
        busy_share=session["busy_share"],
    )


def lavish(studies: Sequence[Study], found: Search) -> list[Study]:
    """The studies with budgets so many times their frontier's steps, where there is one."""
    steps: dict[StudyKey, list[int]] = {}
    for (key, _), (count, _) in found.frontier.items():
        if count is not None:
            steps.setdefault(key, []).append(count)
    return [
        replace(study, budget_steps=max(LAVISH * max(steps[study.key]), 1))
        if study.key in steps
        else study
        for study in studies
    ]


def search_all(file: Path, few: Sequence[str], folder: Path, *, smoke: bool) -> dict[str, Search]:
    """Leaves the runs in `folder`, each under its name."""
    sweeps = {
        name: load_sweep(file, [*few, *more])
        for name, more in (("exact", []), ("full", [WITHOUT]), ("alone", [ALONE]))
    }
    exact = [
        replace(study, stop_dominated=True, keep=1, repeats=0, repeat_best=1)
        for study in plan(sweeps["exact"]).studies
    ]
    with training(smoke=smoke) as train:

        def both(name: str, exact: Sequence[Study]) -> dict[str, Search]:
            full = [replace(study, stop_dominated=False) for study in exact]
            return {
                f"{name}, {how}": search(folder / f"{name}-{how}", train, sweeps[how], studies)
                for how, studies in (("exact", exact), ("full", full))
            }

        own = both("a", exact)
        alone = search(folder / "a-alone", train, sweeps["alone"], exact)
        kept = [replace(study, keep=KEEP) for study in exact]
        more = search(folder / "a-best", train, sweeps["exact"], kept)
        others = {"a, alone": alone, f"a, {KEEP} best": more}
        return own | others | both("b", lavish(exact, own["a, exact"]))


def table_of_costs(found: dict[str, Search]) -> Table:
    rows = [
        ["examples, millions", *(f"{one.total / 1e6:.1f}" for one in found.values())],
        ["steps, thousands", *(f"{one.steps / 1e3:.0f}" for one in found.values())],
        ["seconds", *(f"{one.seconds:.0f}" for one in found.values())],
    ]
    return Table(["", *found], rows)


def measure(smoke: bool) -> tuple[dict[str, Search], dict[str, float]]:
    """The searches, and the seconds of each command."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, few = find_sweep_file(None), [*FEW_TRIALS]
        if smoke:
            file, few = folder / "sweep.yaml", []
            file.write_text(json.dumps(SMOKE_SWEEP))
        found = search_all(file, few, folder, smoke=smoke)
        # In smoke mode the commands find runs that are complete: Ray isn't started once more.
        runs = folder / "a-" if smoke else folder / "command-"
        settings = {"exact": few, "full": [*few, WITHOUT]}
        return found, {
            name: orchestrate(
                "sweep", file, "--out", f"{runs}{name}", *(f"--set={one}" for one in some),
                smoke=smoke, quiet=True,
            ).seconds
            for name, some in settings.items()
        }  # fmt: skip


def main() -> int:
    options = parser_of(__doc__).parse_args()
    smoke = options.smoke
    # Ray and Tune have things to print: not where the figures go.
    with contextlib.redirect_stdout(sys.stderr):
        found, commands = measure(smoke)
    saving, speed_up, identical = {}, {}, {}
    for name in ("a", "b"):
        exact, full = found[f"{name}, exact"], found[f"{name}, full"]
        saving[name] = full.total / exact.total
        speed_up[name] = full.seconds / exact.seconds
        identical[name] = exact.frontier == full.frontier
    stacked = found["a, exact"].total / found["a, alone"].total
    kept, full = found[f"a, {KEEP} best"], found["a, full"]
    same_best, keeping = kept.best == full.best, kept.total / found["a, exact"].total
    ok = (
        all(identical.values())
        and same_best
        and saving["b"] >= MIN_SAVING
        and speed_up["a"] >= MIN_SPEED_UP
        and stacked <= MAX_STACKED
    )

    rows = []
    for what, factors, judged, least in (
        ("times fewer examples", saving, "b", MIN_SAVING),
        ("times less time", speed_up, "a", MIN_SPEED_UP),
    ):
        for name, factor in factors.items():
            held, bound = name != judged or factor >= least, f"{least}" if name == judged else ""
            rows.append([f"({name}): {what}", bounded(f"{factor:.1f}", held), bound])
    rows += [
        [f"({name}): frontiers", bounded("the same" if same else "others", same), "the same"]
        for name, same in identical.items()
    ]
    same = "the same" if same_best else "others"
    rows += [
        [f"(a): the {KEEP} best trials and their order", bounded(same, same_best), "the same"],
        [f"(a): examples to know {KEEP} best, over the winner alone", f"{keeping:.2f}", ""],
        [
            "(a): examples of stacks over one at a time",
            bounded(f"{stacked:.2f}", stacked <= MAX_STACKED),
            f"{MAX_STACKED}",
        ],
        [
            "(a): `orchestrate sweep` from start to exit, exact and full",
            f"{commands['exact']:.0f} and {commands['full']:.0f} s",
            "",
        ],
    ]
    tables = {"costs": table_of_costs(found), "savings": Table(["", "measured", "bound"], rows)}
    figures = to_json(found, commands, saving, speed_up, identical) | {
        "stacked": stacked,
        "keep": KEEP,
        "same_best": same_best,
        "keeping": keeping,
    }
    return print_result("search_cost", tables, figures, options, ok=ok)


def to_json(
    found: dict[str, Search],
    commands: dict[str, float],
    saving: dict[str, float],
    speed_up: dict[str, float],
    identical: dict[str, bool],
) -> dict[str, Any]:
    return {
        "searches": {
            name: {
                "examples": one.total,
                "steps": one.steps,
                "seconds": one.seconds,
                "busy_share": one.busy_share,
                "studies": [
                    {**asdict(key), "examples": examples} for key, examples in one.examples.items()
                ],
                "frontier": [
                    {**asdict(key), "goal": goal, "steps": steps, "trial": trial}
                    for (key, goal), (steps, trial) in one.frontier.items()
                ],
            }
            for name, one in found.items()
        },
        "command_seconds": commands,
        "saving": saving,
        "min_saving": MIN_SAVING,
        "speed_up": speed_up,
        "min_speed_up": MIN_SPEED_UP,
        "same_frontier": identical,
    }


if __name__ == "__main__":
    sys.exit(main())
