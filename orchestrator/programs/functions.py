"""The process of a trial that a Python function of the user trains: `main(trial)`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.programs.reporting import report


@dataclass(frozen=True, kw_only=True)
class FunctionTrial:
    """What a function is called with. With several devices it is called in a process for each, with
    RANK, WORLD_SIZE and so on in the environment, as torchrun sets them."""

    params: Mapping[str, Any]
    batch_size: int
    """Examples of a step, over all devices."""
    seed: int
    steps: int
    """The budget."""
    devices: int
    folder: Path
    """The trial's own folder, which is removed when the trial has ended."""

    def report(self, step: int, metrics: Mapping[str, Any], *, alone: bool = False) -> bool:
        """Reports what was measured. Returns whether the training should go on."""
        return report(step, metrics, alone=alone)


def main(name: str) -> None:
    from orchestrator.files.own_code import import_own

    given = json.loads(os.environ["ORCHESTRATE_TRIAL"])
    names = ("params", "batch_size", "seed", "steps", "devices")
    trial = FunctionTrial(**{name: given[name] for name in names}, folder=Path(given["folder"]))
    import_own("function", name)(trial)


if __name__ == "__main__":
    main(sys.argv[1])
