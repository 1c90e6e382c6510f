"""One trial by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import (
    DONE,
    FAILED,
    INTERRUPTED,
    DataOption,
    JsonOption,
    print_json,
)
from orchestrator.records import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from orchestrator.records import Measurement, Outcome, Study, Trial
    from orchestrator.training import Checkpoint


WORTH_SAYING_SECONDS = 1.0
"""Of evaluation, where they take much of the time: less is nothing to save at."""


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
            help="spacing, min_examples, train_examples=N, gradient_norm=true, distance=true, "
            "noise_scale=true: when and what to measure. May be given again.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Train exactly so many.")] = None,
    ranks: Annotated[
        int, typer.Option(min=1, max=1000, help="Processes that share the batch.")
    ] = 1,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="Most examples a rank puts through the model at once.")
    ] = None,
    stack: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            help="Train in a stack of so many slots: the bits of a sweep's trial whose `width` is "
            "above 1.",
        ),
    ] = 1,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="As `orchestrate frontier --json` prints it.")
    ] = 0,
    checkpoint: Annotated[
        str | None,
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

    from orchestrator.cli.terminal import complain, say
    from orchestrator.planning.studies import single_trial
    from orchestrator.training import train_in_stack, train_on_ranks

    ours = single_trial(
        workload,
        optimizer,
        batch_size,
        params=parse_settings(set_ or [], "--set", "learning_rate=0.1"),
        evaluate=parse_settings(evaluate or [], "--evaluate", "train_examples=500"),
        steps=steps,
        seed=seed,
        data_dir=data_dir,
    )
    announce(ours)
    # As in a sweep, whose trials can be run again here to the same bits; more cores are more ranks.
    torch.set_num_threads(1)
    kept = _kept_checkpoint(checkpoint, checkpoint_seconds) if checkpoint else None
    if stack > 1:
        if ranks > 1 or micro_batch is not None:
            raise BadInput("--stack trains on one rank: leave out --ranks and --micro-batch.")
        training = train_in_stack(ours, stack, data_dir=data_dir, checkpoint=kept)
    else:
        training = train_on_ranks(
            ours, ranks, micro_batch=micro_batch, data_dir=data_dir, checkpoint=kept
        )
    try:
        measurements, (outcome, processes) = follow(
            training, ours.study, (lambda line: None) if as_json else _show
        )
    except KeyboardInterrupt:
        training.close()
        say(
            f"Interrupted. Go on from {checkpoint} with the same command."
            if kept and kept.place.is_file()
            else "Interrupted."
        )
        return INTERRUPTED
    _print_outcome(ours, outcome, processes, measurements, as_json=as_json)
    if outcome.status == "failed":
        complain(outcome.error)
        return FAILED
    return DONE


def announce(trial: Trial) -> None:
    """Tells what is about to be trained."""
    from orchestrator.cli.terminal import say
    from orchestrator.search import searched

    say(f"{trial.study.key}: {trial.settings}")
    if unset := searched(trial.study.space):
        say(f"Not set, so in the middle of its range: {', '.join(unset)}.")


def _print_outcome(
    trial: Trial,
    outcome: Outcome,
    processes: Sequence[int],
    measurements: Sequence[Mapping[str, float]],
    *,
    as_json: bool,
) -> None:
    from orchestrator.cli.terminal import answer, say
    from orchestrator.planning.evaluations import dear_evaluations

    if not as_json:
        answer(
            f"{outcome.status} after {outcome.steps:,} steps in {outcome.seconds:.2f} s of "
            f"training and {outcome.evaluation_seconds:.2f} s of evaluation"
        )
        dear = dear_evaluations(
            examples=trial.study.examples(outcome.steps),
            evaluations=len(measurements),
            training=outcome.seconds,
            evaluating=outcome.evaluation_seconds,
        )
        if dear and outcome.evaluation_seconds > WORTH_SAYING_SECONDS:
            say(dear)
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


def _kept_checkpoint(where: str, every_seconds: float) -> Checkpoint:
    """A checkpoint that is the user's, in a place where it can be written."""
    from orchestrator.cli.terminal import say
    from orchestrator.files.places import Place
    from orchestrator.training import Checkpoint

    place = Place.at(where)
    checkpoint = Checkpoint(place=place, every_seconds=every_seconds, keep=True)
    checkpoint.check_writable()
    if place.is_file():
        say(f"Going on from {place}; what was measured before comes first.")
    return checkpoint


def parse_settings(settings: Sequence[str], option: str, example: str) -> dict[str, Any]:
    """What was given as NAME=VALUE."""
    from orchestrator.files.yaml_files import parse_yaml

    params: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise BadInput(f"{option} takes NAME=VALUE, for example {example}, not {setting!r}.")
        if key in params:
            raise BadInput(f"{option} {key}=... is given twice.")
        params[key] = parse_yaml(text, f"{option} {setting}")
    return params


def follow(
    training: Generator[Measurement, None, Any],
    study: Study,
    show: Callable[[Mapping[str, float]], None],
) -> tuple[list[dict[str, float]], Any]:
    """Each measurement of a training, shown as it is taken; how it ended."""
    lines: list[dict[str, float]] = []
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
    from orchestrator.cli.terminal import answer

    answer("  ".join(f"{name} {value:.6g}" for name, value in line.items()))
