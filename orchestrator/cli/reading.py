"""The commands that read one run: `status`, `frontier`, `best` and `advise`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import remote
from orchestrator.cli.options import (
    ClusterOption,
    GoalOption,
    JsonOption,
    MaximiseOption,
    RunArgument,
    print_json,
)
from orchestrator.cli.terminal import answer, print_table, say
from orchestrator.records import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.cli.advising import Suggestion
    from orchestrator.records import Study
    from orchestrator.results import RunFiles


def status(path: RunArgument, cluster: ClusterOption = None, as_json: JsonOption = False) -> None:
    """Show the progress of a run. With --cluster, fetch it from there first."""
    from orchestrator.results import RunFiles

    if cluster is not None:
        remote.look(cluster, path)
    run = RunFiles.open(path)
    studies = run.in_parallel(partial(_status_of, run), run.studies())
    running, who = _running(run)
    if as_json:
        counts = "planned", "finished", "repeats"
        total = {name: sum(study[name] for study in studies) for name in counts}
        print_json({"run": str(run.place), "running": running, **total, "studies": studies})
    else:
        _print_status(studies)
        say(who)


def _running(run: RunFiles) -> tuple[bool, str]:
    """Whether a process trains a run, and which, as far as it can be known."""
    try:
        process = run.writer()
    except BadInput as error:
        return error.code == "not-yours", str(error)
    return (
        process is not None,
        f"Process {process} trains it." if process else "Nothing is running.",
    )


def _status_of(run: RunFiles, study: Study) -> dict[str, Any]:
    from orchestrator.results import holds_branches, steps_to_all
    from orchestrator.results.counting import has_finished

    trials = run.trials(study.key, {"status", "steps", "open_from", "archive_status"})
    statuses = trials["status"].to_pylist()
    is_over = has_finished(study, trials)
    # Branches are set aside for good once they have been trained far enough.
    aside = 0 if is_over or holds_branches(run) else statuses.count("paused")
    finished = len(statuses) - aside
    # Diverged trials are replaced by others.
    needed = min(study.trials + statuses.count("diverged"), study.launches)
    return {
        **asdict(study.key),
        "planned": finished if is_over else max(needed, len(statuses)),
        "finished": finished,
        "trials": {name: statuses.count(name) for name in sorted(set(statuses))},
        "repeats": len(run.repeats.trials(study.key, {"status"})),
        "best_steps": steps_to_all(run, study, trials),
    }


def _print_status(studies: Sequence[Mapping[str, Any]]) -> None:
    cells = [
        {
            "Workload": study["workload"],
            "Recipe": study["recipe"],
            "Batch size": f"{study['batch_size']:,}",
            "Trials": f"{study['finished']} / {study['planned']}",
            "Repeats": f"{study['repeats']:,}" if study["repeats"] else "",
            "Best steps": "" if study["best_steps"] is None else f"{study['best_steps']:,}",
            "By status": ", ".join(f"{count} {name}" for name, count in study["trials"].items()),
        }
        for study in studies
    ]
    print_table(cells, numbers=("Batch size", "Trials", "Repeats", "Best steps"))


def frontier(
    path: RunArgument,
    goal: GoalOption = None,
    rules: Annotated[
        bool,
        typer.Option(
            "--rules",
            help="Show instead what rules cost: steps of recipes whose metaparameters follow a "
            "rule, over steps of tuned ones.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the fewest steps to the goal in each study. Names the trials that needed them."""
    from orchestrator.cli.answers import print_frontier, print_rules
    from orchestrator.results import RunFiles, frontier_of, parse_goals

    run = RunFiles.open(path)
    rows = frontier_of(run, parse_goals(goal or []))
    if rules:
        print_rules(run, rows, as_json)
    else:
        print_frontier(run, rows, as_json)


def best(
    path: RunArgument,
    metric: Annotated[
        str, typer.Argument(metavar="METRIC", help="Name of a metric, such as val/error.")
    ],
    maximise: MaximiseOption = None,
    within: Annotated[
        list[str] | None,
        typer.Option(
            metavar="UNIT=N",
            help="Use only what was measured within N steps, examples or epochs: epochs=5. "
            "Repeatable. Default: all measurements.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the best value of a metric in each study, and its trial."""
    from orchestrator.results import RunFiles, Within, best_of

    budgets = [Within.parse(text) for text in within or []]
    rows = best_of(RunFiles.open(path), metric, maximise=maximise, within=budgets or [None])
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        from orchestrator.cli.answers import print_best

        print_best(rows)


def advise(path: RunArgument, goal: GoalOption = None, as_json: JsonOption = False) -> None:
    """Recommend what to train next in a sweep. Lists at most three additions, of trials, repeats or
    a batch size, that narrow its answers most for their price, with the commands that train
    them."""
    from orchestrator.cli.advising import advised_for
    from orchestrator.results import RunFiles, parse_goals

    run = RunFiles.open(path)
    suggestions, remarks = advised_for(run, parse_goals(goal or []))
    if as_json:
        print_json({"steps": [one.to_json() for one in suggestions], "remarks": remarks})
        return
    if suggestions:
        _print_advice(suggestions, several=len({study.workload for study in run.studies()}) > 1)
    else:
        answer("No step narrows an interval enough to be worth its price.")
    lines = [f"{n}: {one.command}" for n, one in enumerate(suggestions, 1) if one.command]
    if lines:
        answer("\nEach command takes one step. Take the first, then ask for advice again:")
    for line in lines:
        answer(line)
    for remark in remarks:
        answer(f"\n{remark}")


def _print_advice(suggestions: Sequence[Suggestion], *, several: bool) -> None:
    """Prints the steps; the one that narrows most for its price comes first. `several`: the run has
    several workloads."""
    from orchestrator.analysis.next_steps import effect_in_words, step_in_words

    effects = [effect for one in suggestions for effect in one.step.effects]
    many_goals = len({effect.goal for effect in effects}) > 1
    rows = []
    for number, one in enumerate(suggestions, 1):
        ratios = [
            f"{effect.workload}, " * several
            + f"{effect.recipe}{f', {effect.goal}' * many_goals}: {effect_in_words(effect)}"
            for effect in one.step.effects
        ]
        of_step = {
            "#": str(number),
            "Train": step_in_words(one.step),
            "+20 % examples at: upper end / lower end": "\n".join(ratios),
            "Price": _price(one),
        }
        rows.append(of_step)
    print_table(rows)


def _price(one: Suggestion) -> str:
    from orchestrator.analysis.words import in_count, in_time

    step = one.step
    said = [f"{step.trainings:,.0f} trainings", f"{in_count(round(step.examples, -3))} examples"]
    if step.seconds is not None:
        said.append(f"{in_time(step.seconds)} of one device")
    if one.money is not None:
        said.append(f"{one.money:,.2f} in money")
    return ", ".join(said)
