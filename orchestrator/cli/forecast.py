"""The command `forecast`: it estimates the critical batch size from one training."""

from __future__ import annotations

import math
from dataclasses import asdict
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
)
from orchestrator.cli.terminal import answer, complain, say
from orchestrator.cli.trial import announce, follow, parse_settings
from orchestrator.records import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.analysis import Estimate
    from orchestrator.analysis.forecasts import Comparison, Forecast, NoiseCourse
    from orchestrator.records import Outcome


def forecast(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="Name of a workload (`orchestrate workloads`), or FILE.py:CLASS.",
        ),
    ],
    optimizer: Annotated[
        str, typer.Option(help="Name of an optimizer (`orchestrate spaces`), or FILE.py:CLASS.")
    ],
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per step of the optimizer.")],
    set_: ParamsOption = None,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN",
            help="Run whose repeats measured the noise scale. The forecast is corrected by the "
            "factor between the forecasts and the measured curves of this run. Repeatable.",
        ),
    ] = None,
    steps: StepsOption = None,
    seed: SeedOption = 0,
    data_dir: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """Forecast the critical batch size from one training. It trains once and measures the noise
    scale of the gradients along the way."""
    from orchestrator.analysis.forecasts import courses_of, forecast_by, forecast_in_words
    from orchestrator.planning.single import single_trial
    from orchestrator.training import train_on_ranks
    from orchestrator.training.ranks import one_thread

    known = _calibration(calibrate or [])
    ratios = [comparison.ratio for comparison in known if comparison.ratio]
    ours = single_trial(
        workload,
        optimizer,
        batch_size,
        params=parse_settings(set_ or [], "--set", "learning_rate=0.1"),
        evaluate={"noise_scale": True},
        steps=steps,
        seed=seed,
        data_dir=data_dir,
    )
    announce(ours)
    training = train_on_ranks(ours, 1, data_dir=data_dir)
    with one_thread():
        measurements, (outcome, _) = follow(training, ours.study, _show)
    if outcome.status in ("failed", "diverged"):
        complain(
            outcome.error
            or "The training diverged, so its measurements give no forecast. Lower the learning "
            "rate."
        )
        return FAILED
    (course,) = courses_of(measurements, batch_size)
    found = forecast_by(ours.study.key, [course])
    if as_json:
        compared = [comparison.to_json() for comparison in known]
        print_json({**_document(found, course, ratios, outcome), "compared": compared})
        return DONE
    answer(f"{outcome.status} after {outcome.steps:,} steps")
    for line in forecast_in_words(found, course, ratios):
        answer(line)
    return DONE


def _calibration(paths: Sequence[str]) -> list[Comparison]:
    """Forecasts beside the measured critical batch sizes of runs, for curves that have both."""
    from orchestrator.analysis import scalings
    from orchestrator.analysis.estimates import distance
    from orchestrator.analysis.forecasts import comparisons_of
    from orchestrator.results import RunFiles, frontier_of

    found = []
    for path in paths:
        run = RunFiles.open(path)
        rows = frontier_of(run)
        ours = comparisons_of(run, rows, scalings(rows))
        known = [one for one in ours if one.ratio and distance(*one.ratio.ends) < math.inf]
        if not known:
            raise BadInput(
                f"{path} has no curve whose forecast and critical batch size are both bounded on "
                f"both sides: sweep four batch sizes or more, up to where steps hardly fall, with "
                f"`repeats: 5` and `evaluate: {{noise_scale: repeats}}`.",
                code="not-measured",
            )
        found += known
    return found


def _show(line: Mapping[str, float]) -> None:
    from orchestrator.noise.estimates import GRADIENT_SQUARE, NoiseEstimate, noise_in_words

    if GRADIENT_SQUARE in line:
        said = noise_in_words(NoiseEstimate.from_columns(line)).partition(":")[0]
        say(f"step {line['step']:,}: {said}")


def _document(
    found: Forecast, course: NoiseCourse, ratios: Sequence[Estimate], outcome: Outcome
) -> dict[str, Any]:
    from orchestrator.analysis.forecasts import corrected

    return {
        **asdict(found),
        "corrected": asdict(corrected(found.noise_scale, ratios)) if ratios else None,
        "status": outcome.status,
        "steps": outcome.steps,
        "measurements": [
            {"step": step, **point.columns()}
            for step, point in zip(course.steps, course.points, strict=True)
        ],
    }
