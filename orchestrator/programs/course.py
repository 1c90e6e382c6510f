"""The course of a trial that a program trains, from what the program reports."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from orchestrator.programs.commands import filled, values_of
from orchestrator.programs.hearing import Events, Hearing, Lines, Unheard
from orchestrator.programs.kept import PATIENCE, Exit
from orchestrator.programs.starting import REPORTS, Running
from orchestrator.records import FinishedTrial, Goal, Measurement, Outcome, Source, Status, Trial
from orchestrator.records.standing import Standing

LOOK_SECONDS = 0.02
"""Seconds between two looks at what a program has reported."""

UNHEARD: dict[Source, str] = {
    "report": "It must call orchestrator.report, or the workload needs `metrics`, which say where "
    "its numbers are",
    "stdout": "No line of its output fits the pattern of `metrics`",
    "jsonl": "`metrics` names the file {place}, which has no line with a step",
    "tensorboard": "`metrics` names the folder {place}, which has no scalars",
}
"""Where its numbers are looked for -> what is to be done about a program that reports none."""

Ending = Callable[[Mapping[Goal, int], int], Status | None]
"""The rule that may end a trial early; see `orchestrator.training.loop`."""


class ProgramFailed(Exception):
    """Raised if a program can't train its trial. `died` says that another attempt may succeed."""

    def __init__(self, reason: str, *, died: bool = False) -> None:
        super().__init__(reason)
        self.died = died


class Course:
    """The course of one trial, from what its program reports."""

    def __init__(
        self,
        trial: Trial,
        ending: Ending | None,
        own: Path,
        channel: Path,
        earlier: Sequence[Path],
    ) -> None:
        self._trial, self._ending = trial, ending
        study, program = self._trial.study, self._trial.study.program
        assert program is not None
        self._resumes, self._asks = program.resumes, program.heard.asks
        self._budget, self._channel, self._log = study.budget_steps, channel, own / "measured.jsonl"
        known = self._known() if self._resumes else []
        self._standing = Standing(study, stays=self._trial.stays)
        for measurement in known:
            self._standing.add(measurement)
        self._hearing = Hearing(study, known)
        self.status: Status | None = self._standing.status or (self._cut() if known else None)
        for old in earlier:
            # What it reported while it was ended, or its driver was gone.
            for _ in self._hear(Lines(old / REPORTS)):
                pass
            self._hearing.again()
        known = self._standing.measurements
        self._resumed = known[-1] if known else Measurement(step=0, seconds=0.0, metrics={})
        self._source = _source(self._trial, own, channel)
        self._began = time.time()

    def is_over(self) -> bool:
        return self.status is not None

    def follow(self, running: Running, hang_seconds: float | None) -> Iterator[Measurement | None]:
        """Hears the program until its trial has ended, whose status is known then."""
        heard = time.monotonic()
        while not self.is_over():
            exit_ = running.ended(LOOK_SECONDS)
            for measurement in self._hear(self._source, over=exit_ is not None and not exit_.code):
                heard = time.monotonic()
                yield measurement
            if self.is_over():
                return
            if exit_ is not None:
                self.status = self._after(exit_)
            elif (cut := self._cut()) is not None:
                self.status = cut  # by what other trials have reached in the meantime
            elif hang_seconds is not None and time.monotonic() - heard > hang_seconds:
                raise ProgramFailed(
                    f"the program reported nothing for {hang_seconds:g} seconds "
                    f"(faults.hang_seconds) and was ended",
                    died=True,
                )
            else:
                yield None

    def _hear(self, source: Lines | Events, *, over: bool = False) -> Iterator[Measurement]:
        """The new measurements up to the trial's end. With `over`, the program has ended well, so
        that what it has reported in part is all there is."""
        try:
            for measurement in self._new(source, over=over):
                if self.is_over():
                    return
                if self._take(measurement):
                    yield measurement
        except Unheard as error:
            raise ProgramFailed(str(error)) from None

    def _new(self, source: Lines | Events, *, over: bool) -> Iterator[Measurement]:
        hearing = self._hearing
        for report in source.new(over=over):
            yield from hearing.line(report) if isinstance(report, bytes) else hearing.report(report)
        if over:
            yield from hearing.rest()

    def _take(self, measurement: Measurement) -> bool:
        """Whether a measurement lies within the budget. A later one ends the trial."""
        if measurement.step > self._budget:
            if not self._standing.measurements:
                raise Unheard(
                    f"its first report was that of step {measurement.step:,}, after its budget of "
                    f"{self._budget:,} steps"
                )
            self.status = "reached" if self._standing.all_reached else "exhausted"
            return False
        self._standing.add(measurement)
        if self._resumes:  # written before anyone hears of it
            with self._log.open("a") as file:
                file.write(json.dumps(asdict(measurement)) + "\n")
        self.status = self._standing.status or self._cut()
        return True

    def _cut(self) -> Status | None:
        if self._ending is None or self._standing.staying:
            return None
        return self._ending(self._standing.unmet, self._standing.upcoming)

    def _after(self, exit_: Exit) -> Status:
        """The status of a trial whose program has ended by itself."""
        if exit_.code:
            raise ProgramFailed(exit_.in_words, died=exit_.code < 0)
        if not self._standing.measurements:
            raise ProgramFailed("\n".join([*exit_.last, self._unheard()]))
        return "reached" if self._standing.all_reached else "exhausted"

    def _unheard(self) -> str:
        assert self._trial.study.program is not None
        heard = self._trial.study.program.heard
        return f"the program ended without a report. {UNHEARD[heard.source]}".format(
            place=heard.place
        )

    def end(self, running: Running) -> Iterator[None]:
        """Ends the program, which may do so itself if it asks."""
        (self._channel / "stop").touch()
        asked, until = not self._asks, time.monotonic() + PATIENCE
        if asked:
            running.end()
        while running.ended(LOOK_SECONDS) is None:
            if not asked and time.monotonic() > until:
                asked = True
                running.end()
            yield None

    def finished(self, devices: int) -> FinishedTrial:
        assert self.status is not None
        measurements = self._standing.measurements
        last = measurements[-1] if measurements else self._resumed
        took = time.time() - self._began
        return FinishedTrial(
            trial=self._trial,
            outcome=Outcome(
                status=self.status,
                steps=last.step,
                seconds=last.seconds,
                # All else that the program took: its start, and its end.
                evaluation_seconds=max(took - (last.seconds - self._resumed.seconds), 0.0),
                resumed_steps=self._resumed.step,
                resumed_seconds=self._resumed.seconds,
            ),
            measurements=tuple(measurements),
            ranks=devices,
            started=self._began,
            where=f"{platform.node()}:{os.getpid()}",
        )

    def _known(self) -> list[Measurement]:
        """What the program had reported when it was last ended. A line may be cut off."""
        found = []
        with suppress(FileNotFoundError):
            whole, _, _ = self._log.read_text().rpartition("\n")
            self._log.write_text(f"{whole}\n" if whole else "")
            found = [Measurement(**json.loads(line)) for line in whole.splitlines()]
        return found


def _source(trial: Trial, own: Path, channel: Path) -> Lines | Events:
    program = trial.study.program
    assert program is not None
    heard = program.heard
    if heard.source in ("report", "stdout"):
        return Lines(channel / REPORTS)
    # A relative place is that which the program itself would write to.
    place = Path(filled(heard.place, values_of(trial, 1, own)))
    return Lines(place) if heard.source == "jsonl" else Events(place)
