"""The purpose of a run, in studies.json: its sweep and the studies that follow from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from orchestrator.files.places import Place
from orchestrator.records import (
    BadInput,
    BatchSchedule,
    Choice,
    EvaluationGrid,
    Extras,
    Goal,
    Heard,
    Program,
    Range,
    SearchPlan,
    Stage,
    Study,
    StudyKey,
    unreadable,
)
from orchestrator.records.stages import Cooldown

STUDIES = "studies.json"

KEY = ("workload", "recipe", "batch_size")

FORMAT = 1
"""Version of the file format of a run. It grows when older runs would be misread."""


class Purpose:
    """A run as far as its file studies.json tells: what it is for."""

    def __init__(self, place: Place) -> None:
        self.place, self._file = place, place / STUDIES
        self._read: tuple[object, list[Study]] = None, []
        """A part of the document, and the studies in it."""

    def sweep(self) -> dict[str, Any]:
        """The resolved document of the sweep that the run is for."""
        sweep: dict[str, Any] = without_gone(self._parts()["sweep"])
        return sweep

    def grown_from(self) -> dict[str, Any] | None:
        """The sweep that the run was made for before it grew; None if it did not grow."""
        sweep: dict[str, Any] | None = without_gone(self._parts()["grown_from"])
        return sweep

    def studies(self) -> list[Study]:
        with self._understanding():
            entries = self._parts()["studies"]
            if entries is not self._read[0]:
                self._read = entries, [study_from(entry) for entry in entries]
            return [*self._read[1]]

    @property
    def is_compact(self) -> bool:
        """Whether the run holds whole curves of its best trials and of repeats only."""
        return self._parts()["compact"] is True

    def widths(self) -> dict[StudyKey, int]:
        """Study -> number of its trials that are stacked, for studies where that is decided."""
        with self._understanding():
            return {
                StudyKey(**{name: entry[name] for name in KEY}): entry["width"]
                for entry in self._parts()["widths"]
            }

    def write_widths(self, widths: Mapping[StudyKey, int]) -> None:
        self._file.write_text(to_json({**self._document(), "widths": _listed(widths)}))

    def write_purpose(
        self,
        sweep: Mapping[str, Any],
        studies: Iterable[Study],
        grown_from: Mapping[str, Any] | None,
    ) -> None:
        """Writes the file as a whole: if interrupted, the run is for the old or the new sweep."""
        document = {
            "format": FORMAT,
            "sweep": dict(sweep),
            "grown_from": grown_from,
            "studies": [asdict(study) for study in studies],
            "widths": _listed(self.widths() if self._file.is_file() else {}),
        }
        compact = {"compact": True} if self._file.is_file() and self.is_compact else {}
        self._file.write_text(to_json({**document, **compact}))

    def copy_purpose(self, original: Purpose, *, compact: bool) -> None:
        """Writes the file of a copy, which may be `compact`, of the run `original`."""
        mark = {"compact": True} if compact else {}
        self._file.write_text(to_json({**original._document(), **mark}))

    def _document(self) -> Any:
        with self._understanding():
            return _parsed(self._file.read_text())

    def _parts(self) -> dict[str, Any]:
        with self._understanding():
            document = self._document()
            if (found := document.get("format", 0)) != FORMAT:
                raise BadInput(
                    f"The files of {self.place} have format {found}, but this version reads format "
                    f"{FORMAT}. Read them with the version that provenance.json names.",
                    code="other-format",
                )
            parts = {name: document[name] for name in ("sweep", "grown_from", "studies")}
            parts["widths"] = document.get("widths", [])  # older runs lack this part
            parts["compact"] = document.get("compact")
            parts["sweep"].keys()
            return parts

    @contextmanager
    def _understanding(self) -> Iterator[None]:
        try:
            yield
        except BadInput:
            raise
        except FileNotFoundError:
            raise BadInput(
                f"{self._file} is missing, which holds the sweep and the studies of the run. Put "
                f"back a copy of it, or name another folder with --out.",
                code="damaged-run",
            ) from None
        except OSError as error:
            raise unreadable(self._file, error) from None
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise BadInput(
                f"{self._file} can't be understood ({type(error).__name__}: {error}). It was "
                f"damaged or changed. Put back a copy of it, or name another folder with --out.",
                code="damaged-run",
            ) from None


_parsed = lru_cache(maxsize=8)(json.loads)
"""The document in a text that may be long and is read often. Nobody changes it."""


def _listed(widths: Mapping[StudyKey, int]) -> list[dict[str, Any]]:
    return [{**asdict(key), "width": width} for key, width in sorted(widths.items())]


def to_json(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def finite(value: Any) -> Any:
    """The value with null in place of numbers that are not finite, which JSON can't hold."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    return value


def study_from(entry: Mapping[str, Any]) -> Study:
    """The study that `asdict` and JSON turned into this entry."""
    entry = without_gone(entry)
    parts = {
        "space": {name: _space_entry(value) for name, value in entry["space"].items()},
        "goals": tuple(Goal(**goal) for goal in entry["goals"]),
        "grid": EvaluationGrid(**entry["grid"]),
        "extras": Extras(**entry["extras"]),
        "states_at": tuple(entry.get("states_at", ())),
        "search": SearchPlan(**{**entry["search"], "points": tuple(entry["search"]["points"])}),
    }
    if (schedule := entry.get("batch_schedule")) is not None:
        stages = tuple(Stage(**stage) for stage in schedule["stages"])
        parts["batch_schedule"] = BatchSchedule(stages)
    if (cooldown := entry.get("cooldown")) is not None:
        parts["cooldown"] = Cooldown(**cooldown)
    if (program := entry.get("program")) is not None:
        heard, command = Heard(**program["heard"]), tuple(program["command"])
        parts["program"] = Program(**{**program, "heard": heard, "command": command})
    return Study(**{**entry, **parts})


def _space_entry(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "options" in value:
        return Choice(**{**value, "options": tuple(value["options"])})
    return Range(**value)


GONE = frozenset(
    {
        "branch.points.spacing", "divergence", "evaluate.distance", "evaluate.gradient_norm",
        "extras.distance", "extras.gradient_norm", "programs.*.command", "recipes.rules",
        "report.baseline", "report.compare_at", "search.extend", "space.*.limits", "space.*.when",
        "stop.diverged",
    }
)  # fmt: skip
"""Settings of earlier versions, which no longer exist: their keys, from the outermost in. The keys
of programs and spaces are any names."""

NAMED = frozenset({"programs", "space"})


def without_gone(part: Any, inside: str = "") -> Any:
    """A part of a file, `inside` of these keys, without the settings that no longer exist."""
    if isinstance(part, list):
        return [without_gone(item, inside) for item in part]
    if not isinstance(part, Mapping):
        return part
    paths = {key: f"{inside}.{key}".lstrip(".") for key in part}
    if inside in NAMED:
        paths = dict.fromkeys(part, f"{inside}.*")
    return {
        key: without_gone(value, paths[key])
        for key, value in part.items()
        if paths[key] not in GONE
    }
