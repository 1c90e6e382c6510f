"""The `orchestrate` command: parse, call one stage, print.

Whatever is slow to import is imported by the command that needs it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.records import BadInput, SweepFailed

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from orchestrator.progress import Progress
    from orchestrator.records import Measurement, Trial
    from orchestrator.results import FrontierRow, Run
    from orchestrator.sweep import Plan
    from orchestrator.training import Checkpoint

DONE, FAILED, BAD_INPUT, GOAL_UNREACHED, INTERRUPTED = 0, 1, 2, 3, 130


def _exit_with(code: int) -> None:
    raise typer.Exit(code)


app = typer.Typer(
    result_callback=_exit_with,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="How far can your batch size scale? Plan, run and read the experiment that tells.",
)

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
GoalOption = Annotated[
    list[str] | None,
    typer.Option("--goal", help="METRIC<VALUE; may be given again. Default: the sweep's."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="May be given again.")
]
DataOption = Annotated[
    Path | None,
    typer.Option(envvar="ORCHESTRATE_DATA", help="The folder that has a folder per data set."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="A running Ray cluster: `auto` or HOST:PORT. Default: RAY_ADDRESS, or none."),
]


def main() -> None:
    """The console script."""
    try:
        app()
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)


@app.command()
def sweep(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE|NAME]", help="Default: the quickstart.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder [runs/NAME].")] = None,
    set_: SetOption = None,
    address: AddressOption = None,
    data_dir: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run every study of a sweep file; go on with a run that was interrupted."""
    from orchestrator.results import Run, provenance
    from orchestrator.sweep import differences, find_sweep_file, load_sweep, plan

    described = load_sweep(find_sweep_file(file), set_ or [])
    planned = plan(described, data_dir)
    run = Run(out or Path("runs") / described.name)
    run.check_writable()
    if run.exists:
        if changed := differences(run.sweep(), described.resolved()):
            raise BadInput(
                f"{run.path} was made from another sweep. It differs in\n  "
                + "\n  ".join(changed)
                + "\nName another folder with --out."
            )
    else:
        run.create(described.resolved(), planned.studies, provenance())
    return _run_plan(run, planned, address, data_dir, as_json)


@app.command()
def resume(
    path: RunArgument,
    address: AddressOption = None,
    data_dir: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Go on with a run: train what its files do not hold yet."""
    from orchestrator.results import Run
    from orchestrator.sweep import load_sweep, plan

    run = Run.open(path)
    planned = plan(load_sweep(path / "sweep.yaml"), data_dir)
    return _run_plan(run, planned, address, data_dir, as_json)


def _run_plan(
    run: Run, planned: Plan, address: str | None, data_dir: Path | None, as_json: bool
) -> int:
    """Trains what is missing from the run, then writes and prints what it says."""
    from orchestrator.progress import Progress
    from orchestrator.terminal import say

    progress = Progress(planned.studies)
    missing = _missing_trials(run, planned, progress)
    complete = True
    if not missing:
        say(f"{run.path} holds every trial of this sweep: nothing to train.")
    else:
        say(
            f"{len(planned.studies)} studies, {len(missing)} trials to train "
            f"({progress.done} are there already), into {run.path}"
        )
        try:
            complete = _train(run, planned, missing, progress, address, data_dir)
        except SweepFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return FAILED
        except KeyboardInterrupt:
            complete = False
    rows = _write_up(run)
    _print_frontier(rows, as_json)
    say(f"Report: {run.path / 'report.html'}")
    if not complete:
        say(f"Interrupted. Go on with: orchestrate resume {run.path}")
        return INTERRUPTED
    return DONE if all(row.reached for row in rows) else GOAL_UNREACHED


def _missing_trials(run: Run, planned: Plan, progress: Progress) -> list[Trial]:
    """What the run's files do not hold yet; `progress` is told of what they do."""
    from orchestrator.search import propose

    missing = []
    for study in planned.studies:
        finished = {row["trial"]: row for row in run.trials(study.key).to_pylist()}
        for trial in propose(study, planned.sweep.seed):
            row = finished.get(trial.index)
            if row is None or row["status"] == "failed":
                missing.append(trial)
            else:
                progress.studies[study.key].add(row["status"], row["steps"])
    return missing


def _train(
    run: Run,
    planned: Plan,
    missing: Sequence[Trial],
    progress: Progress,
    address: str | None,
    data_dir: Path | None,
) -> bool:
    """Trains on a cluster, in sight of the user; False after an interrupt."""
    from orchestrator.cluster import connect, run_trials
    from orchestrator.terminal import say, showing

    with connect(address, run.path / "log.txt") as cluster:
        # From here on an interrupt is not the end: what was measured is still written up. Ray has
        # put a handler of its own in place by now, which would abort.
        signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        if cluster.dashboard:
            say(f"Ray dashboard: http://{cluster.dashboard} (`ray get-auth-token`)")
        with showing(progress):
            return run_trials(
                run,
                missing,
                planned.studies,
                cluster=cluster,
                resources=planned.sweep.resources,
                progress=progress,
                checkpoint_seconds=planned.sweep.checkpoint.every_seconds,
                data_dir=data_dir,
            )


def _write_up(run: Run) -> list[FrontierRow]:
    """Makes the frontier and the report anew from the run's files."""
    from orchestrator.results import frontier_of, write_frontier

    rows = frontier_of(run)
    write_frontier(run, rows)
    _write_report(run, rows, run.path / "report.html")
    return rows


def _write_report(run: Run, rows: Sequence[FrontierRow], path: Path) -> None:
    from orchestrator.analysis import scalings
    from orchestrator.report import write_report

    write_report(
        path,
        title=str(run.sweep()["name"]),
        rows=rows,
        scalings=scalings(rows),
        provenance=run.provenance(),
        sweep_file=(run.path / "sweep.yaml").read_text(encoding="utf-8"),
    )


def _print_frontier(rows: Sequence[FrontierRow], as_json: bool) -> None:
    from orchestrator.terminal import frontier_table, print_table

    if as_json:
        _print_json([row.to_json() for row in rows])
    else:
        print_table(frontier_table(rows))


@app.command()
def status(path: RunArgument, as_json: JsonOption = False) -> int:
    """How far a run has come."""
    from orchestrator.results import Run
    from orchestrator.terminal import print_table, status_table

    run = Run.open(path)
    studies = []
    for study in run.studies():
        trials = run.trials(study.key)
        statuses = trials["status"].to_pylist()
        reached = [
            s
            for s, how in zip(trials["steps"].to_pylist(), statuses, strict=True)
            if how == "reached"
        ]
        studies.append(
            {
                "workload": study.workload,
                "recipe": study.recipe,
                "batch_size": study.batch_size,
                "planned": study.trials,
                "finished": len(statuses),
                "trials": {name: statuses.count(name) for name in sorted(set(statuses))},
                "best_steps": min(reached, default=None),
            }
        )
    if as_json:
        planned = sum(study.trials for study in run.studies())
        finished = sum(len(run.trials(study.key)) for study in run.studies())
        _print_json(
            {"run": str(path), "planned": planned, "finished": finished, "studies": studies}
        )
    else:
        print_table(status_table(studies))
    return DONE


@app.command()
def frontier(
    path: RunArgument,
    goal: GoalOption = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print as CSV.")] = False,
) -> int:
    """The fewest steps to goal of every study, and the trial that needed them."""
    from orchestrator.results import Run, frontier_of, parse_goals, to_csv

    if as_json and as_csv:
        raise BadInput("Give --json or --csv, not both.")
    rows = frontier_of(Run.open(path), parse_goals(goal or []))
    if as_csv:
        print(to_csv(rows), end="")
    else:
        _print_frontier(rows, as_json)
    return DONE


@app.command()
def report(
    path: RunArgument,
    goal: GoalOption = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The page [RUN/report.html].")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write the report of a run as one HTML page, or print its answers as JSON."""
    from orchestrator.analysis import scalings
    from orchestrator.results import Run, frontier_of, parse_goals

    run = Run.open(path)
    rows = frontier_of(run, parse_goals(goal or []))
    if as_json:
        _print_json([scaling.to_json() for scaling in scalings(rows)])
        return DONE
    page = output or path / "report.html"
    try:
        _write_report(run, rows, page)
    except OSError as error:
        raise BadInput(f"The report can't be written to {page}: {error.strerror}.") from None
    print(page)
    return DONE


@app.command()
def trial(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD")],
    optimizer: Annotated[str, typer.Option(help="See `orchestrate spaces`.")],
    batch_size: Annotated[
        int, typer.Option(min=1, help="Examples per optimizer step, over all ranks.")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A metaparameter: those of the optimizer, a schedule (decay=cosine, "
            "warmup_epochs=2), layerwise_ratio, label_smoothing, gradient_clip, dropout, "
            "ema_decay, precision ... `orchestrate spaces` lists all. May be given again.",
        ),
    ] = None,
    evaluate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="spacing, min_examples, train_examples=N, gradient_norm=true, distance=true: "
            "when and what to measure. May be given again.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Train exactly so many.")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Processes that share the batch.")] = 1,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="Most examples a rank puts through the model at once.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="As `orchestrate frontier --json` prints it.")
    ] = 0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Go on from this file if it exists; leave the trial's state there."),
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="How often, in seconds of training; and at the end.")
    ] = 60,
    data_dir: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Train once by hand, without Ray."""
    import torch

    from orchestrator.sweep import single_trial
    from orchestrator.terminal import say
    from orchestrator.training import train_on_ranks

    ours = single_trial(
        workload,
        optimizer,
        batch_size,
        params=_parse_settings(set_ or [], "--set", "learning_rate=0.1"),
        evaluate=_parse_settings(evaluate or [], "--evaluate", "train_examples=500"),
        steps=steps,
        seed=seed,
        data_dir=data_dir,
    )
    chosen = ", ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in ours.params.items()
    )
    say(f"{ours.study.key}: {chosen or 'the defaults of its library'}")
    # As in a sweep, whose trials can be run again here to the same bits; more cores are more ranks.
    torch.set_num_threads(1)
    kept = _kept_checkpoint(checkpoint, checkpoint_seconds) if checkpoint else None
    training = train_on_ranks(
        ours,
        ranks,
        micro_batch=micro_batch,
        data_dir=data_dir,
        checkpoint=kept,
    )
    try:
        measurements, (outcome, processes) = _follow(training, batch_size, quiet=as_json)
    except KeyboardInterrupt:
        training.close()
        say(
            f"Interrupted. Go on from {checkpoint} with the same command."
            if checkpoint and checkpoint.exists()
            else "Interrupted."
        )
        return INTERRUPTED
    if as_json:
        _print_json(
            {
                "workload": workload,
                "optimizer": optimizer,
                "batch_size": batch_size,
                "status": outcome.status,
                "steps": outcome.steps,
                "seconds": outcome.seconds,
                "evaluation_seconds": outcome.evaluation_seconds,
                "ranks": processes,
                "micro_batch": outcome.micro_batch,
                "params": dict(ours.params),
                "seed": seed,
                "measurements": measurements,
            }
        )
    else:
        print(
            f"{outcome.status} after {outcome.steps:,} steps in {outcome.seconds:.2f} s of "
            f"training and {outcome.evaluation_seconds:.2f} s of evaluation"
        )
    if outcome.status == "failed":
        print(f"error: {outcome.error}", file=sys.stderr)
        return FAILED
    return DONE


def _kept_checkpoint(path: Path, every_seconds: float) -> Checkpoint:
    """A checkpoint that is the user's, in a place where it can be written."""
    from orchestrator.terminal import say
    from orchestrator.training import Checkpoint

    checkpoint = Checkpoint(path=path, every_seconds=every_seconds, keep=True)
    checkpoint.check_writable()
    if path.exists():
        say(f"Going on from {path}; what was measured before comes first.")
    return checkpoint


def _parse_settings(settings: Sequence[str], option: str, example: str) -> dict[str, Any]:
    """What was given as NAME=VALUE."""
    from orchestrator.yaml_files import parse_yaml

    params: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise BadInput(f"{option} takes NAME=VALUE, for example {example}, not {setting!r}.")
        if key in params:
            raise BadInput(f"{option} {key}=... is given twice.")
        params[key] = parse_yaml(text, f"{option} {setting}")
    return params


def _follow(
    training: Generator[Measurement, None, Any], batch_size: int, *, quiet: bool
) -> tuple[list[dict[str, float]], Any]:
    """Each measurement of a training as it is taken, printed unless `quiet`; how it ended."""
    lines: list[dict[str, float]] = []
    while True:
        try:
            measurement = next(training)
        except StopIteration as end:
            return lines, end.value
        line = {
            "step": measurement.step,
            "examples": measurement.step * batch_size,
            "seconds": measurement.seconds,
            **measurement.metrics,
        }
        lines.append(line)
        if not quiet:
            print("  ".join(f"{name} {value:.6g}" for name, value in line.items()), flush=True)


@app.command()
def workloads(as_json: JsonOption = False) -> int:
    """The registered workloads."""
    from orchestrator.terminal import describe, print_table
    from orchestrator.workloads import REGISTRY, metaparameters_of, options_of

    found = [
        {
            "workload": name,
            "goal": entry.goal,
            "options": options_of(entry),
            "metaparameters": metaparameters_of(entry),
            "description": (entry.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " "),
        }
        for name, entry in REGISTRY.items()
    ]
    if as_json:
        _print_json(found)
    else:
        print_table(describe(found))
    return DONE


data_app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    help="The data sets: present or not, where they are looked for, how to get them.",
)
app.add_typer(data_app, name="data")


@data_app.callback()
def data(context: typer.Context, data_dir: DataOption = None, as_json: JsonOption = False) -> int:
    """The data sets: present or not, where they are looked for, how to get them."""
    from orchestrator.terminal import describe, print_table
    from orchestrator.workloads.data import CATALOGUE, FOLDER_VARIABLE

    if context.invoked_subcommand:
        return DONE
    found: list[dict[str, Any]] = []
    for entry in CATALOGUE.values():
        files = entry.find(data_dir)
        found.append(
            {
                "name": entry.name,
                "present": str(next(iter(files.values())).parent) if files else None,
                "size": entry.size,
                "about": entry.about,
                "licence": entry.licence,
                "looked for in": [str(place) for place in entry.places(data_dir)],
                "get": entry.get,
            }
        )
    if as_json:
        _print_json(found)
        return DONE
    for line in found:
        line["present"] = line["present"] or "no"
        line["looked for in"] = (
            line["looked for in"] or f"give --data-dir or set ${FOLDER_VARIABLE}"
        )
    print_table(describe(found))
    return DONE


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    data_dir: DataOption = None,
) -> int:
    """Fetch a data set from where a package has it, and check it."""
    from orchestrator.workloads.data import data_set, fetch

    entry = data_set(name)
    if data_dir is None:
        raise BadInput("Say where to put it: --data-dir FOLDER, or set $ORCHESTRATE_DATA.")
    print(fetch(entry, data_dir))
    return DONE


@app.command()
def spaces(as_json: JsonOption = False) -> int:
    """The optimizers, the ranges in which they are searched, and all that can be set besides."""
    from orchestrator.search import SEARCH_SPACES, known_spaces
    from orchestrator.terminal import describe, meanings, print_table
    from orchestrator.training import GENERAL, accepted_by
    from orchestrator.yaml_files import read_yaml

    found = []
    for name in known_spaces():
        document = read_yaml(SEARCH_SPACES / f"{name}.yaml")
        others = [setting for setting in accepted_by(name)[1] if setting not in document["space"]]
        found.append({"optimizer": name, **document, "also": others})
    if as_json:
        _print_json([{**entry, "any_recipe": GENERAL} for entry in found])
        return DONE
    for entry in found:
        entry["also"] = ", ".join(name for name in entry["also"] if name not in GENERAL)
    print_table(describe(found))
    print(
        "\nAny other optimizer of torch.optim or pytorch_optimizer goes by its name, with its own "
        "arguments.\nWhatever the optimizer, a recipe may fix or search:\n"
    )
    print_table(meanings(GENERAL))
    print("\nand what its workload's loss takes: see `orchestrate workloads`.")
    return DONE


def _print_json(document: Any) -> None:
    """One JSON document on standard output; what isn't a finite number is null."""
    print(json.dumps(_finite(document), indent=1, ensure_ascii=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    return value


if __name__ == "__main__":
    main()
