"""Where a trial stands, in one file: written whole or not at all, and read without running code."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from orchestrator.files.places import Place
from orchestrator.records import BadInput, Measurement, Trial
from orchestrator.training.ranks import Ranks

logger = logging.getLogger(__name__)

State = Callable[[], Mapping[str, Any]]
"""What tells all that the steps to come of a trial depend on."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trial goes on from the file at `place`, if there is one, and leaves its state there."""

    place: Place
    every_seconds: float
    """Of training."""
    keep: bool = False
    """Whether the file is the user's: it stays when the trial is over, and if it can't be used it
    is refused. Otherwise it is gone then, and what can't be used is as good as none."""

    def save(
        self, trial: Trial, state: State, measurements: Sequence[Measurement], ranks: Ranks
    ) -> None:
        """Called on every rank; the first one writes."""
        training = state()
        if ranks.rank > 0:
            return
        document = {
            "trial": _identity(trial),
            "training": training,
            "measurements": [asdict(measurement) for measurement in measurements],
        }
        try:
            content = io.BytesIO()
            torch.save(document, content)
            self.place.write(content.getbuffer())
        except (OSError, RuntimeError) as error:
            if self.keep:
                raise BadInput(f"The checkpoint {self.place} can't be written: {error}.") from None
            # A node without the run's storage, a full disk: no reason to lose the trial as well.
            logger.warning("the checkpoint %s can't be written: %s", self.place, error)

    def check_writable(self) -> None:
        """Refuses a place where nothing can be written, before anything is trained."""
        try:
            if self.place.is_folder():
                raise IsADirectoryError(0, "it is a folder")
            self.place.parent.check_writable()
        except OSError as error:
            raise BadInput(
                f"The checkpoint {self.place} can't be written: {error.strerror or error}."
            ) from None

    def load(
        self, trial: Trial, put: Callable[[Mapping[str, Any]], None], ranks: Ranks
    ) -> list[Measurement]:
        """Lets `put` bring the trial to where the file says, and returns what was measured until
        then: nothing if there is no file, or if what it holds didn't fit."""
        content = self.place.read() if ranks.rank == 0 and self.place.is_file() else None
        # Only the first rank's machine needs to have the file.
        content = ranks.from_first(content)
        if content is None:
            return []
        try:
            document = _document(content)
            if document["trial"] == _identity(trial):
                put(document["training"])
                return [Measurement(**measurement) for measurement in document["measurements"]]
            problem = (
                "is the checkpoint of another trial: of other metaparameters, another seed, goal, "
                "budget or evaluation"
            )
        # Damaged files make torch raise almost anything.
        except Exception:
            problem = "is not the checkpoint of a trial, or is damaged"
        if self.keep:
            raise BadInput(f"{self.place} {problem}. Remove it, or name another file.")
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
        """What becomes of the file when the trial is over, or only cut short `to_go_on` later."""
        if self.keep or to_go_on:
            self.save(trial, state, measurements, ranks)
        elif ranks.rank == 0:
            try:
                self.place.remove()
            except OSError as error:
                # It has served its purpose, and goes with its folder when the sweep is complete.
                logger.warning("the checkpoint %s can't be removed: %s", self.place, error)


@dataclass(frozen=True, kw_only=True)
class States:
    """States of a trial that others begin with, each in a file of its own in a folder."""

    folder: Place
    keep_at: Collection[int] = ()
    """Of the trial itself: at these steps its state is kept."""
    begin_at: int = 0
    """The step with whose state the trial begins; 0: afresh."""

    def file(self, step: int) -> Place:
        return self.folder / f"state-{step:09d}.pt"

    def keep(self, step: int, state: State, ranks: Ranks) -> None:
        """Called on every rank after each measurement; the first one writes."""
        if step not in self.keep_at:
            return
        training = state()
        if ranks.rank == 0:
            content = io.BytesIO()
            torch.save(training, content)
            self.file(step).write(content.getbuffer())

    def first(self, ranks: Ranks) -> Mapping[str, Any] | None:
        """The state to begin with."""
        if not self.begin_at:
            return None
        file = self.file(self.begin_at)
        content = file.read() if ranks.rank == 0 and file.is_file() else None
        content = ranks.from_first(content)
        if content is None:
            raise BadInput(
                f"The state to begin with is not at {file}. Every machine that trains must see the "
                f"run's folder: name one that they share, or a bucket, with --out."
            )
        return _document(content)


def _document(content: bytes) -> Mapping[str, Any]:
    document: Mapping[str, Any] = torch.load(
        io.BytesIO(content), map_location="cpu", weights_only=True
    )
    return document


NOT_OF_A_COURSE = (
    "space", "trials", "search", "repeats", "repeat_best", "inherit", "stop_dominated", "keep",
    "recipe",
)  # fmt: skip
"""Fields of a study that the course of a single trial does not depend on."""


def _identity(trial: Trial) -> str:
    """A digest of all that the trial's course depends on."""
    document = asdict(trial)
    for name in NOT_OF_A_COURSE:
        del document["study"][name]
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
