"""Where a trial stands, in one file: written whole or not at all, and read without running code."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.records import BadInput, Measurement, Trial
from orchestrator.training.ranks import Ranks
from orchestrator.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trial goes on from the file at `path`, if there is one, and leaves its state there."""

    path: Path
    every_seconds: float
    """Of training."""
    keep: bool = False
    """Whether the file is the user's: it stays when the trial is over, and if it can't be used it
    is refused. Otherwise it is gone then, and what can't be used is as good as none."""

    def save(
        self, trial: Trial, trainer: Trainer, measurements: Sequence[Measurement], ranks: Ranks
    ) -> None:
        """Called on every rank; the first one writes."""
        training = trainer.state()
        if ranks.rank > 0:
            return
        document = {
            "trial": _identity(trial),
            "training": training,
            "measurements": [asdict(measurement) for measurement in measurements],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        torch.save(document, unfinished)
        unfinished.replace(self.path)

    def load(self, trial: Trial, trainer: Trainer, ranks: Ranks) -> list[Measurement]:
        """Puts `trainer` where the file says, and returns what was measured until then."""
        content = self.path.read_bytes() if ranks.rank == 0 and self.path.exists() else None
        # Only the first rank's machine needs to have the file.
        content = ranks.from_first(content)
        if content is None:
            return []
        try:
            document = self._document(content, trial)
        except BadInput:
            if self.keep:
                raise
            return []
        trainer.load(document["training"])
        return [Measurement(**measurement) for measurement in document["measurements"]]

    def _document(self, content: bytes, trial: Trial) -> Mapping[str, Any]:
        try:
            document: Mapping[str, Any] = torch.load(
                io.BytesIO(content), map_location="cpu", weights_only=True
            )
            identity = document["trial"]
        except (RuntimeError, KeyError, EOFError, pickle.UnpicklingError):
            raise BadInput(
                f"{self.path} is not the checkpoint of a trial. Remove it, or name another file."
            ) from None
        if identity != _identity(trial):
            raise BadInput(
                f"{self.path} is the checkpoint of another trial: of other metaparameters, another "
                f"seed, goal or budget. Name another file."
            )
        return document

    def finish(
        self, trial: Trial, trainer: Trainer, measurements: Sequence[Measurement], ranks: Ranks
    ) -> None:
        """What becomes of the file when the trial is over."""
        if self.keep:
            self.save(trial, trainer, measurements, ranks)
        elif ranks.rank == 0:
            self.path.unlink(missing_ok=True)


def _identity(trial: Trial) -> str:
    """A digest of all that the trial's course depends on."""
    document = asdict(trial)
    for name in ("space", "trials", "recipe"):
        del document["study"][name]
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
