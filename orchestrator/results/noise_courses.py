"""The gradient noise scale along trainings, taken from their measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from orchestrator.noise.estimates import GRADIENT_SQUARE, PRECONDITIONED, NoiseEstimate
from orchestrator.records import Study, StudyKey
from orchestrator.results.store import RunFiles


@dataclass(frozen=True, kw_only=True)
class NoiseCourse:
    """The noise scale measured along one training."""

    batch_size: int
    steps: tuple[int, ...]
    points: tuple[NoiseEstimate, ...]


@dataclass(frozen=True, kw_only=True)
class NoiseCourses:
    """The noise scales of all trainings of one point that measured it."""

    plain: tuple[NoiseCourse, ...] = ()
    preconditioned: tuple[NoiseCourse, ...] = ()
    """Those of the gradient as the optimizer scales it, from the second measurement on."""


def noise_courses(
    run: RunFiles, studies: Iterable[Study], winners: Mapping[StudyKey, int]
) -> dict[StudyKey, NoiseCourses]:
    """The noise scales along trainings of the winners and their repeats, where measured."""
    asked = [
        study
        for study in studies
        if (study.extras.noise_scale != "never" or study.program) and study.key in winners
    ]

    def courses(study: Study) -> NoiseCourses:
        trial, measured = winners[study.key], run.repeats.measurements(study.key).to_pylist()
        rows = [row for row in measured if row["trial"] == trial]
        if study.extras.noise_scale == "always" or study.program:
            rows += run.curve(study.key, trial).to_pylist()
        return courses_of(rows, study.batch_size)

    found = zip(asked, run.in_parallel(courses, asked), strict=True)
    return {study.key: courses for study, courses in found if courses.plain}


def courses_of(measurements: Iterable[Mapping[str, Any]], batch_size: int) -> NoiseCourses:
    """The noise scales in measurements given as rows of tables, in order of repeat and step."""
    plain: list[NoiseCourse] = []
    preconditioned: list[NoiseCourse] = []
    for _, rows in groupby(measurements, key=lambda row: row.get("repeat", 0)):
        measured = [row for row in rows if row.get(GRADIENT_SQUARE) is not None]
        scaled = [row for row in measured if row.get(PRECONDITIONED[0]) is not None]
        for target, some, read in (
            (plain, measured, NoiseEstimate.from_columns),
            (preconditioned, scaled, NoiseEstimate.preconditioned_from),
        ):
            if some:
                course = NoiseCourse(
                    batch_size=batch_size,
                    steps=tuple(row["step"] for row in some),
                    points=tuple(map(read, some)),
                )
                target.append(course)
    return NoiseCourses(plain=tuple(plain), preconditioned=tuple(preconditioned))
