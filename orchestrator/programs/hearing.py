"""What programs report, as measurements. Whatever way a report takes, the same rules hold."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from pathlib import Path
from typing import Any

from orchestrator.files.event_files import events, scalars
from orchestrator.records import Measurement, Study, escaped, shown
from orchestrator.records.studies import Heard

LONGEST_REPORT = 1_000_000
"""Bytes of one report."""

MOST_METRICS, LONGEST_METRIC = 1_000, 200
"""Largest number of metrics of a trial, and of characters of the name of one."""

ANEW = "Steps must rise over the whole training, not begin anew in each epoch"


class ProgramFailed(Exception):
    """Raised if a program can't train its trial, such as for a report that can't be used. `died`
    says that another attempt may succeed."""

    def __init__(self, reason: str, *, died: bool = False) -> None:
        super().__init__(reason)
        self.died = died


class Lines:
    """The new whole lines of a file that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._place, self._read, self._rest = path, 0, b""

    def new(self, exited: int | None) -> Iterator[bytes]:
        """The lines by the time that the other process has exited with this code. None: it still
        runs, and may write faster than is read here, so a part is all there is for now. 0: it has
        written all that it wanted, so that the last line needs no end."""
        try:
            file = self._place.open("rb")
        except FileNotFoundError:
            return
        except OSError as error:
            raise ProgramFailed(f"its reports can't be read: {error}") from None
        with file:
            file.seek(self._read)
            while part := file.read(LONGEST_REPORT):
                self._read += len(part)
                *lines, self._rest = (self._rest + part).split(b"\n")
                if len(self._rest) > LONGEST_REPORT:
                    raise ProgramFailed(f"a report is longer than {LONGEST_REPORT:,} bytes")
                yield from (line for line in lines if line.strip())
                if exited is None:
                    break
        if exited == 0 and self._rest.strip():
            last, self._rest = self._rest, b""
            yield last


class Events:
    """The new scalars of TensorBoard's event files in a folder, as reports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self, exited: int | None) -> Iterator[dict[str, Any]]:
        found: list[list[tuple[float, int, str, float]]] = []
        for file in sorted(self._folder.rglob("*tfevents*")):
            with file.open("rb") as records:
                records.seek(self._read.get(file, 0))
                found.append([])
                try:
                    for event in events(records, file.stat().st_size):
                        self._read[file] = records.tell()
                        for each in scalars(event):
                            found[-1].append((event.wall_time, event.step, *each))
                except ValueError:
                    raise ProgramFailed(f"{file.name} holds no events of TensorBoard") from None
        # Training and validation may each have a file.
        for at, step, tag, number in merge(*found):
            name = f"program/{tag}" if tag in ("step", "time") else tag
            yield {name: number, "step": step, "time": at}


class Hearing:
    """Makes measurements of the reports of one trial, in order. The first report of a step counts.
    Equal ones may follow, as of other ranks that all print, and parts of it: a report is complete
    when it has the metrics of all goals, or when a later step is reported."""

    def __init__(self, study: Study, known: Iterable[Measurement] = ()) -> None:
        program = study.the_program
        self._heard, self._every, self._budget = program.heard, program.every, study.budget_steps
        self._goals = {goal.metric for goal in study.goals}
        self._steps = {each.step: dict(each.metrics) for each in known}
        self._repeated = self._last = max(self._steps, default=-1)
        """Up to this step, all was known before the program was started again, and is dropped."""
        self._complete = self._repeated
        self._open: tuple[int, float] | None = None
        """Step and seconds of the report that is not complete yet."""
        self._carried = False
        """Whether an earlier attempt has left it open."""
        self._names = {name for metrics in self._steps.values() for name in metrics}
        self._began: float | None = None
        self._seconds = self._before = max((each.seconds for each in known), default=0.0)

    def again(self) -> None:
        """Says that the program is started again. It may repeat some of its reports."""
        self._carried = self._open is not None
        self._repeated, self._began, self._before = self._complete, None, self._seconds

    def line(self, line: bytes) -> list[Measurement]:
        try:
            report = json.loads(line)
            if not isinstance(report, dict):
                raise ValueError
        except (ValueError, RecursionError):
            raise ProgramFailed(
                f'a report must be a line of JSON such as {{"step": 100, "loss": 2.5}}, but is '
                f"{shown(line.decode(errors='replace'))}"
            ) from None
        return self.report(report)

    def report(self, report: Mapping[str, Any]) -> list[Measurement]:
        """The measurements that are complete with this report."""
        if self._heard.source == "jsonl" and self._heard.step not in report:
            return []  # such as a line of settings
        step, at, metrics = _parts(report, self._heard)
        if self._began is None or step <= self._repeated:
            self._began = at
        if step <= self._repeated or not metrics:
            return []
        if self._carried and self._open is not None and step <= self._open[0]:
            # It has begun before the report that was left open.
            del self._steps[self._open[0]]
            self._open, self._last = None, self._repeated
        self._carried = False
        known = self._steps.get(step)
        late = known is None or not self._goals & metrics.keys() <= known.keys()
        if late and step < self._last:
            raise ProgramFailed(f"it reported step {step:,} after step {self._last:,}. {ANEW}")
        done = []
        if known is None:
            done, known = self.rest(), self._steps.setdefault(step, {})
            self._seconds = self._before + max(at - self._began, 0.0)
            self._open, self._last = (step, self._seconds), step
        for name, value in metrics.items():
            before = known.setdefault(name, value)
            if before != value and not (math.isnan(before) and math.isnan(value)):
                more = f". {ANEW}" if step < self._last else ""
                raise ProgramFailed(
                    f"it reported {name} {value:g} for step {step:,}, which it had reported as "
                    f"{before:g}. Each step needs one value: report from one rank, or the mean "
                    f"over all, under one name for each metric{more}"
                )
        self._names |= metrics.keys()
        if len(self._names) > MOST_METRICS:
            raise ProgramFailed(f"it reported more than {MOST_METRICS:,} different metrics")
        if self._open is not None and self._goals and self._goals <= known.keys():
            done += self.rest()
        return done

    def rest(self) -> list[Measurement]:
        """The report that is still open, as when the program has ended."""
        if self._open is None:
            return []
        (step, seconds), self._open = self._open, None
        metrics = {
            name: value
            for name, value in self._steps[step].items()
            # A loss or a goal that is not finite is divergence; other numbers may not exist yet.
            if math.isfinite(value) or name in self._goals or name.endswith("loss")
        }
        if self._every is not None:
            if not self._goals <= metrics.keys():
                return []  # the next step that counts is `every` after the last that did
            if self._complete >= 0 and step < min(self._complete + self._every, self._budget):
                raise ProgramFailed(
                    f"it reported step {step:,} after step {self._complete:,}, but `every: "
                    f"{self._every}` says that reports are no closer to each other. Lower it"
                )
        self._complete = step
        return [Measurement(step=step, seconds=seconds, metrics=metrics)]


def _parts(report: Mapping[str, Any], heard: Heard) -> tuple[int, float, dict[str, float]]:
    """The step, the time and the metrics of a report."""
    found: dict[str, float] = {}
    for name, said in report.items():
        value = _number(name, said) if isinstance(said, str) and heard.pattern else said
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                found[name] = float(value)
            except OverflowError:  # JSON has whole numbers that no float can hold
                found[name] = math.inf
        elif value is None:  # as JSON writes a number that is not finite
            found[name] = math.nan
    step, now = found.pop(heard.step, math.nan), time.time()
    at = now if heard.source == "jsonl" else found.pop("time", now)
    if not (math.isfinite(step) and step >= 0 and step == int(step)):
        raise ProgramFailed(
            f"a report needs a {heard.step!r}, a whole number from 0 on, but is "
            f"{shown(dict(report))}"
        )
    return int(step), at, {_named(name): value for name, value in found.items()}


def _named(name: str) -> str:
    """The metric's name, beside the columns that a table of measurements has anyway."""
    taken = name in ("trial", "repeat", "step", "examples", "seconds")
    return f"program/{name}" if taken else escaped(name[:LONGEST_METRIC])


def _number(name: str, text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise ProgramFailed(
            f"the pattern found {shown(text)} for {name!r}, which is no number. Let its group take "
            f"digits only, such as (?P<{name}>[-+.0-9eE]+)"
        ) from None
