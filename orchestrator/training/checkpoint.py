"""Saves a trial's state in a file: written whole or not at all, and read without running code."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from orchestrator.files.places import Place
from orchestrator.records import BadInput, Measurement, Trial, cut
from orchestrator.training.ranks import Ranks

logger = logging.getLogger(__name__)

State = Callable[[], Mapping[str, Any]]
"""Function that returns everything that the next steps of a trial depend on."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The file at `place`: a trial resumes from it, if it can be used, and saves its state there.
    It is removed when the trial is over."""

    place: Place
    every_seconds: float
    """Seconds of training between two saves."""

    @classmethod
    def of(cls, trial: Trial, folder: Place, every_seconds: float) -> Checkpoint:
        """The trial's own file in the folder."""
        return cls(place=folder / f"{trial.file_name}.pt", every_seconds=every_seconds)

    def save(
        self, trial: Trial, state: State, measurements: Sequence[Measurement], ranks: Ranks
    ) -> None:
        """Saves the state. All ranks must call this; the first rank writes the file."""
        training = state()
        if ranks.rank > 0:
            return
        document = {
            "trial": trial.identity,
            "training": training,
            "measurements": [asdict(measurement) for measurement in measurements],
        }
        try:
            _write(self.place, document)
        except (OSError, RuntimeError) as error:
            # The machine may lack the run's storage, or its disk be full. The trial can go on.
            logger.warning("the checkpoint %s can't be written: %s", self.place, error)

    def load(
        self, trial: Trial, put: Callable[[Mapping[str, Any]], None], ranks: Ranks
    ) -> list[Measurement]:
        """Restores the trial with `put` from the file, and returns the measurements until then.
        Returns no measurements if there is no file, or if its content does not fit the trial."""
        content = _content(self.place, ranks)
        if content is None:
            return []
        problem, known = "", list[Measurement]()
        try:
            document = _document(content)
            if document["trial"] == trial.identity:
                known = [Measurement(**measurement) for measurement in document["measurements"]]
                put(document["training"])
            else:
                problem = (
                    "is the checkpoint of another trial: its metaparameters, seed, goal, budget or "
                    "evaluation differ"
                )
        # Damaged files make torch raise exceptions of many types.
        except Exception as error:
            reason = f"{type(error).__name__}: {cut(str(error), 200)}"
            problem = f"can't be used, since it is damaged or memory is short ({reason})"
        # If one rank can't go on from it, all begin anew: they wait for each other at each step.
        problems = [each for each in ranks.gather(problem) if each]
        if not problems:
            return known
        logger.warning("%s %s. The trial begins anew.", self.place, problems[0])
        return []

    def finish(
        self,
        trial: Trial,
        state: State,
        measurements: Sequence[Measurement],
        ranks: Ranks,
        *,
        to_go_on: bool = False,
    ) -> None:
        """Removes the file when the trial is over. Saves the state instead if the trial is paused
        `to_go_on` later."""
        if to_go_on:
            self.save(trial, state, measurements, ranks)
        elif ranks.rank == 0:
            try:
                self.place.remove()
            except OSError as error:
                # The file is not needed any more. Its folder is removed when the sweep is complete.
                logger.warning("the checkpoint %s can't be removed: %s", self.place, error)


@dataclass(frozen=True, kw_only=True)
class States:
    """States of trials with which other trials begin. Each state is a file in a folder."""

    folder: Place
    keep_at: Collection[int] = ()
    """Steps at which the trial's state is saved for other trials."""
    begin_at: int = 0
    """Step of the saved state with which the trial begins; 0: it begins with a new model."""

    def file(self, step: int) -> Place:
        return self.folder / f"state-{step:09d}.pt"

    def keep(self, step: int, state: State, ranks: Ranks) -> None:
        """Saves the state if `step` is in `keep_at`. All ranks must call this after each
        measurement; the first rank writes the file."""
        if step not in self.keep_at:
            return
        training = state()
        if ranks.rank == 0:
            _write(self.file(step), training)

    def first(self, ranks: Ranks) -> Mapping[str, Any] | None:
        """Returns the state with which the trial begins; None for a new model."""
        if not self.begin_at:
            return None
        file = self.file(self.begin_at)
        content = _content(file, ranks)
        if content is None:
            raise BadInput(
                f"The state with which the trial begins is not at {file}. Every machine that "
                f"trains must see the run's folder: give a shared folder or a bucket with --out."
            )
        try:
            return _document(content)
        # Damaged files make torch raise exceptions of many types.
        except Exception as error:
            raise BadInput(
                f"The state with which the trial begins, {file}, can't be used, since it is "
                f"damaged or memory is short ({type(error).__name__}). If it is damaged, remove "
                f"it: `orchestrate resume` then trains the trunk again.",
                code="damaged-run",
            ) from None


def _write(place: Place, document: Mapping[str, Any]) -> None:
    content = io.BytesIO()
    torch.save(document, content)
    place.write(content.getbuffer())


def _content(place: Place, ranks: Ranks) -> bytes | None:
    """Returns what is in the file, which only the machine of the first rank needs to have."""
    own = place.read() if ranks.rank == 0 and place.is_file() else None
    content: bytes | None = ranks.from_first(own)
    return content


def _document(content: bytes) -> Mapping[str, Any]:
    document: Mapping[str, Any] = torch.load(
        io.BytesIO(content), map_location="cpu", weights_only=True
    )
    return document
