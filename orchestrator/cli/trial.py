"""The command `trial`: it trains one trial without Ray."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import (
    DONE,
    FAILED,
    DataOption,
    JsonOption,
    ParamsOption,
    SeedOption,
    StepsOption,
    print_json,
    refuse_both,
)
from orchestrator.cli.terminal import answer, complain, say
from orchestrator.records import BadInput, searched, wrong_value

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from orchestrator.planning.sweep import Sweep
    from orchestrator.records import Measurement, Outcome, Study, Trial


def trial(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="Name of a workload (`orchestrate workloads`), FILE.py:CLASS, or a sweep file "
            "whose workload is a program.",
        ),
    ],
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="Name of an optimizer (`orchestrate spaces`), or FILE.py:CLASS. With a sweep "
            "file: one of its recipes. Default: its first."
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Examples per step of the optimizer, over all ranks. With a sweep file, default: "
            "one from the middle of its list.",
        ),
    ] = None,
    set_: ParamsOption = None,
    evaluate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="When and what to measure: spacing, min_examples, precision=bfloat16, "
            "train_examples=N, noise_scale=true. Repeatable.",
        ),
    ] = None,
    steps: StepsOption = None,
    ranks: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of processes that share each batch.")
    ] = 1,
    stack: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            help="Number of slots of the stack to train in. A trial of a sweep with `width` above "
            "1 gives the same bits only in a stack.",
        ),
    ] = 1,
    seed: SeedOption = 0,
    data_dir: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Train one trial without Ray: in this process, or by a program of yours, to see whether its
    reports arrive."""
    settings = parse_settings(set_ or [], "--set", "learning_rate=0.1")
    show = (lambda line: None) if as_json else _show
    if workload.endswith((".yaml", ".yml")):
        for option, given in (("evaluate", evaluate), ("ranks", ranks > 1), ("stack", stack > 1)):
            if given:
                raise BadInput(f"--{option} has no effect on a program.", code="no-effect")
        from orchestrator.planning.single import single_program_trial
        from orchestrator.planning.sweep_file import find_sweep_file, load_sweep

        sweep = load_sweep(find_sweep_file(workload))
        ours = single_program_trial(
            sweep, recipe=optimizer, batch_size=batch_size, params=settings, steps=steps, seed=seed
        )
        return _by_program(sweep, ours, show, as_json=as_json)
    if optimizer is None or batch_size is None:
        missing = "--optimizer" if optimizer is None else "--batch-size"
        raise BadInput(f"{missing} is needed for a trial of {workload}.", code="missing-option")
    refuse_both({"stack": stack > 1}, {"ranks": ranks > 1})
    import torch

    from orchestrator.planning.single import single_trial
    from orchestrator.training import train_in_stack, train_on_ranks

    ours = single_trial(
        workload,
        optimizer,
        batch_size,
        params=settings,
        evaluate=parse_settings(evaluate or [], "--evaluate", "train_examples=500"),
        steps=steps,
        seed=seed,
        data_dir=data_dir,
        ranks=ranks,
    )
    announce(ours)
    # As in a sweep, whose trials can be run again here to the same bits; more cores are more ranks.
    torch.set_num_threads(1)
    if stack > 1:
        training = train_in_stack(ours, stack, data_dir=data_dir)
    else:
        training = train_on_ranks(ours, ranks, data_dir=data_dir)
    measurements, (outcome, processes) = follow(training, ours.study, show)
    _print_outcome(ours, outcome, processes, measurements, as_json=as_json)
    if outcome.status == "failed":
        complain(outcome.error)
        return FAILED
    return DONE


def _by_program(
    sweep: Sweep, ours: Trial, show: Callable[[Mapping[str, float]], None], *, as_json: bool
) -> int:
    """Trains a trial by the program of a sweep file."""
    from orchestrator.programs.commands import arguments_of
    from orchestrator.programs.hearing import ProgramFailed
    from orchestrator.programs.trials import train_alone

    devices = sweep.resources.devices(ours.study, sweep.faults.hang_seconds)
    announce(ours)
    with tempfile.TemporaryDirectory(prefix="orchestrate-trial-") as folder:
        say(shlex.join(arguments_of(ours, devices.count, Path(folder))))
        training = train_alone(ours, devices, Path(folder))
        try:
            measurements, outcome = follow(training, ours.study, show)
        except ProgramFailed as error:
            complain(error)
            return FAILED
    _print_outcome(ours, outcome, [], measurements, as_json=as_json)
    return DONE


def announce(trial: Trial) -> None:
    """Says which trial is about to be trained, and with which metaparameters."""
    say(f"{trial.study.key}: {trial.settings}")
    if unset := searched(trial.study.space):
        say(f"Not set, so taken from the middle of the range: {', '.join(unset)}.")


def _print_outcome(
    trial: Trial,
    outcome: Outcome,
    processes: Sequence[int],
    measurements: Sequence[Mapping[str, float]],
    *,
    as_json: bool,
) -> None:
    if not as_json:
        other = "evaluation" if trial.study.program is None else "starting and ending"
        answer(
            f"{outcome.status} after {outcome.steps:,} steps in {outcome.seconds:.2f} s of "
            f"training and {outcome.evaluation_seconds:.2f} s of {other}"
        )
        return
    print_json(
        {
            "workload": trial.study.workload,
            "optimizer": trial.study.optimizer,
            "batch_size": trial.study.batch_size,
            "status": outcome.status,
            "steps": outcome.steps,
            "seconds": outcome.seconds,
            "evaluation_seconds": outcome.evaluation_seconds,
            "ranks": processes,
            "micro_batch": outcome.micro_batch,
            "width": outcome.width,
            "params": dict(trial.params),
            "seed": trial.seed,
            "measurements": measurements,
        }
    )


def parse_settings(settings: Sequence[str], option: str, example: str) -> dict[str, Any]:
    """Parses NAME=VALUE settings into a dict; values are read as YAML."""
    from orchestrator.files.yaml_files import parse_yaml

    params: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise wrong_value(option, f"NAME=VALUE, such as {example}", setting)
        if key in params:
            raise BadInput(f"{option} {key}=... is given twice.", code="given-twice")
        params[key] = parse_yaml(text, f"{option} {setting}")
    return params


def follow(
    training: Generator[Measurement, None, Any],
    study: Study,
    show: Callable[[Mapping[str, float]], None],
) -> tuple[list[dict[str, float]], Any]:
    """Runs a training, shows each measurement, and returns all and the training's result."""
    lines: list[dict[str, float]] = []
    with closing(training):
        while True:
            try:
                measurement = next(training)
            except StopIteration as end:
                return lines, end.value
            line = {
                "step": measurement.step,
                "examples": study.examples(measurement.step),
                "seconds": measurement.seconds,
                **measurement.metrics,
            }
            lines.append(line)
            show(line)


def _show(line: Mapping[str, float]) -> None:
    answer("  ".join(f"{name} {value:.6g}" for name, value in line.items()))
