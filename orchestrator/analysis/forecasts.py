"""Forecasts of the critical batch size, from noise scales measured along trainings.

A step at batch size B makes 1 / (1 + B_noise / B) of the progress of a step without noise. Weighted
by this, the measurements along a training give one number, which is compared with B_crit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from orchestrator.analysis.estimates import Estimate, distance, ratio_of, reach_of, together
from orchestrator.analysis.points import OfCurve, without_growing
from orchestrator.analysis.scaling import CRITICAL_TOLERANCE, Scaling
from orchestrator.analysis.words import factor_in_words, in_words
from orchestrator.noise.estimates import GRADIENT_SQUARE, NoiseEstimate
from orchestrator.records import Study, StudyKey, counted, grouped
from orchestrator.results import FrontierRow, RunFiles


@dataclass(frozen=True, kw_only=True)
class NoiseCourse:
    """The noise scale measured along one training."""

    batch_size: int
    steps: tuple[int, ...]
    points: tuple[NoiseEstimate, ...]


def noise_courses(
    run: RunFiles, studies: Iterable[Study], rows: Iterable[FrontierRow]
) -> dict[StudyKey, tuple[NoiseCourse, ...]]:
    """The noise scales along trainings of the answering trials, repeats too, where measured."""
    answering = {row.key: trial for row in rows if (trial := row.answering[0]) is not None}
    asked = [
        study
        for study in studies
        if (study.extras.noise_scale != "never" or study.program) and study.key in answering
    ]

    def courses(study: Study) -> tuple[NoiseCourse, ...]:
        trial, measured = answering[study.key], run.repeats.measurements(study.key).to_pylist()
        lines = [row for row in measured if row["trial"] == trial]
        if study.extras.noise_scale == "always" or study.program:
            lines += run.curve(study.key, trial).to_pylist()
        return courses_of(lines, study.batch_size)

    found = zip(asked, run.in_parallel(courses, asked), strict=True)
    return {study.key: courses for study, courses in found if courses}


def courses_of(
    measurements: Iterable[Mapping[str, Any]], batch_size: int
) -> tuple[NoiseCourse, ...]:
    """The noise scales in measurements given as rows of tables, in order of repeat and step."""
    by_repeat = groupby(measurements, key=lambda row: row.get("repeat", 0))
    trainings = [
        [row for row in rows if row.get(GRADIENT_SQUARE) is not None] for _, rows in by_repeat
    ]
    return tuple(
        NoiseCourse(
            batch_size=batch_size,
            steps=tuple(row["step"] for row in rows),
            points=tuple(map(NoiseEstimate.from_columns, rows)),
        )
        for rows in trainings
        if rows
    )


@dataclass(frozen=True, kw_only=True)
class Forecast(StudyKey):
    """A forecast of the critical batch size, from trainings at one batch size."""

    trainings: int
    noise_scale: Estimate


@dataclass(frozen=True, kw_only=True)
class Comparison(OfCurve):
    """Forecasts for one workload and recipe beside the measured critical batch size."""

    forecasts: tuple[Forecast, ...]
    """The forecasts, from the smallest batch size up."""
    forecast: Estimate
    """Geometric mean of the forecasts. Its interval comes from their scatter."""
    measured: Estimate | None
    ratio: Estimate | None


def mean_of(course: NoiseCourse) -> NoiseEstimate:
    """The means of |G|^2 and trS over the steps of a training, each divided by the squared length
    of the noisy gradient at its step. The mean of |G|^2 is then the progress of an average step, as
    a share of its progress without noise. The errors are those of the samples, by which these
    lengths err as well."""
    steps, size = course.steps, course.batch_size
    ends = [steps[0], *((a + b) / 2 for a, b in pairwise(steps)), steps[-1]]
    shares = np.diff(np.array(ends, dtype=np.float64)) if len(steps) > 1 else np.ones(1)
    points = course.points
    square, square_error, variance, variance_error, covariance = np.array(
        [(p.gradient_square, p.gradient_square_error, p.variance, p.variance_error, p.covariance)
         for p in points]
    ).T  # fmt: skip
    above = np.maximum(square, 0)
    lengths = above + variance / size
    moves = lengths > 0
    weights = np.divide(
        shares, lengths * shares[moves].sum(), out=np.zeros_like(lengths), where=moves
    )
    # How the two shares of each length, and so both means, change with its |G|^2 and its trS.
    slopes = np.divide(weights, lengths, out=np.zeros_like(lengths), where=moves) * np.array(
        [[variance / size, -square / size], [-variance * (square > 0), above]]
    )
    errors = np.array([[square_error**2, covariance], [covariance, variance_error**2]])
    whole = np.einsum("iap,abp,jbp->ij", slopes, errors, slopes)
    return NoiseEstimate(
        gradient_square=float((weights * square).sum()),
        variance=float((weights * variance).sum()),
        floor=float(whole[0, 0]),
        variance_error=math.sqrt(max(float(whole[1, 1]), 0.0)),
        covariance=float(whole[0, 1]),
        freedom=points[0].freedom,
    )


def comparisons_of(
    run: RunFiles, rows: Sequence[FrontierRow], scalings: Sequence[Scaling]
) -> list[Comparison]:
    """The B_crit of each curve beside the forecasts from its answering trials, as far as their
    noise scale was measured. Each goal has trials of its own."""
    forecasts: dict[str, list[Forecast]] = {}
    for goal, asked in grouped(without_growing(rows), lambda row: row.goal).items():
        found = noise_courses(run, run.studies(), asked)
        forecasts[goal] = [forecast_by(key, courses) for key, courses in found.items()]
    return [one for scaling in scalings for one in compared(forecasts[scaling.goal], [scaling])]


def along(course: NoiseCourse) -> dict[int, Estimate]:
    """Step -> the noise scale there, along one training, with the interval of its samples."""
    return dict(zip(course.steps, map(_as_estimate, course.points), strict=True))


def forecast_by(key: StudyKey, courses: Sequence[NoiseCourse]) -> Forecast:
    return Forecast(**asdict(key), trainings=len(courses), noise_scale=foretold(courses))


def foretold(courses: Sequence[NoiseCourse]) -> Estimate:
    """The forecast from trainings at one batch size that differ in their seeds. Its interval comes
    from their scatter, or for a single training from its samples."""
    mean = _mean([mean_of(course) for course in courses])
    known = len(courses) > 1 or mean.floor or mean.variance_error
    return _as_estimate(mean) if known else Estimate(value=mean.noise_scale)


def _mean(points: Sequence[NoiseEstimate]) -> NoiseEstimate:
    """The mean of several trainings, with errors from their scatter."""
    if len(points) == 1:
        return points[0]
    squares, variances = np.array([(each.gradient_square, each.variance) for each in points]).T
    count = len(points)
    return NoiseEstimate(
        gradient_square=float(squares.mean()),
        variance=float(variances.mean()),
        floor=float(squares.var(ddof=1)) / count,
        variance_error=float(variances.std(ddof=1)) / count**0.5,
        covariance=float(np.cov(squares, variances)[0, 1]) / count,
        freedom=count - 1,
    )


def _as_estimate(estimate: NoiseEstimate) -> Estimate:
    low, high = estimate.interval()
    return Estimate(value=estimate.noise_scale, low=low, high=high)


def compared(forecasts: Sequence[Forecast], scalings: Sequence[Scaling]) -> Iterator[Comparison]:
    """The B_crit of each curve beside the forecasts for its workload and recipe."""
    ordered = sorted(forecasts, key=lambda forecast: forecast.batch_size)
    for scaling in scalings:
        of_recipe = [f for f in ordered if (f.workload, f.recipe) == scaling.names[:2]]
        if of_recipe:
            forecast = together([each.noise_scale for each in of_recipe])
            yield Comparison(
                workload=scaling.workload,
                recipe=scaling.recipe,
                goal=scaling.goal,
                forecasts=tuple(of_recipe),
                forecast=forecast,
                measured=scaling.critical_batch_size,
                ratio=ratio_of(forecast, scaling.critical_batch_size),
            )


def corrected(forecast: Estimate, ratios: Sequence[Estimate]) -> Estimate:
    """The forecast over the geometric mean of the `ratios` of earlier forecasts to measurements.
    The interval comes from their scatter and from the interval of the forecast. Of an infinite
    forecast, the lower end is corrected."""
    logs, blind = np.log([ratio.value for ratio in ratios]), math.isinf(forecast.value)
    value = (forecast.low or 0 if blind else forecast.value) / math.exp(logs.mean())
    if len(logs) > 1:
        reach = reach_of(len(logs) - 1) * float(logs.std(ddof=1))
        down = up = reach * math.sqrt(1 + 1 / len(logs))
    else:
        (ratio,) = ratios
        down, up = distance(ratio.value, ratio.high), distance(ratio.low, ratio.value)
    if blind:
        return Estimate(value=math.inf, low=value * math.exp(-down), high=math.inf)
    down = math.hypot(down, distance(forecast.low, forecast.value))
    up = math.hypot(up, distance(forecast.value, forecast.high))
    return Estimate(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def a_fifth_more(critical: Estimate) -> Estimate:
    """The batch size at which training takes a fifth more examples than the fewest."""
    return critical.times(CRITICAL_TOLERANCE)


def forecast_in_words(
    found: Forecast, course: NoiseCourse, ratios: Sequence[Estimate]
) -> list[str]:
    """The forecast from one training, and corrected by the `ratios` of earlier ones, if any."""
    first, last = (
        f"{in_words(Estimate(value=course.points[at].noise_scale))} at step {course.steps[at]:,}"
        for at in (0, -1)
    )
    lines = [f"Noise scale: {first}, {last}.", f"Forecast: {_meaning(found.noise_scale)}."]
    if not ratios:
        return [
            *lines,
            "The forecast comes from one training and can be wrong by a large factor. Correct it "
            "by your own runs with --calibrate RUN.",
        ]
    factor = factor_in_words(together(ratios))
    return [
        *lines,
        f"For {counted(len(ratios), 'measured curve')}, the forecast was {factor} times the "
        f"measured critical batch size.",
        f"Corrected forecast: {_meaning(corrected(found.noise_scale, ratios))}.",
    ]


def _meaning(scale: Estimate) -> str:
    if not math.isfinite(scale.value):
        return f"noise scale {in_words(scale)}"
    return (
        f"a fifth more examples at batch size {in_words(a_fifth_more(scale))}, twice as many at "
        f"{in_words(scale)}"
    )
