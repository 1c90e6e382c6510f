"""How far can the batch size of a training scale? Plan, run and read that experiment.

    import orchestrator

    run = orchestrator.sweep("quickstart")       # or a file, or what is in one
    run.frontier().to_pandas()                   # steps to goal, by batch size
    run.scaling()                                # where the curves bend
    run.figure("steps").show()
    run = orchestrator.open_run("runs/quickstart")

Nothing is loaded before it is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.api.calls import Trained, branch, plan, scaling, sweep, train
    from orchestrator.api.run import Compared, Run, open_run
    from orchestrator.api.tables import Table
    from orchestrator.programs.reporting import report
    from orchestrator.records import BadInput, SweepFailed
    from orchestrator.workloads import (
        Classification,
        Loaded,
        NextToken,
        Streamed,
        Subset,
        Tensors,
        Workload,
        examples_of,
        with_ghosts,
    )

__all__ = [
    "BadInput",
    "Classification",
    "Compared",
    "Loaded",
    "NextToken",
    "Run",
    "Streamed",
    "Subset",
    "SweepFailed",
    "Table",
    "Tensors",
    "Trained",
    "Workload",
    "branch",
    "examples_of",
    "open_run",
    "plan",
    "report",
    "scaling",
    "sweep",
    "train",
    "with_ghosts",
]

_WHERE = {
    "orchestrator.api.calls": ("Trained", "branch", "plan", "scaling", "sweep", "train"),
    "orchestrator.api.run": ("Compared", "Run", "open_run"),
    "orchestrator.api.tables": ("Table",),
    "orchestrator.records": ("BadInput", "SweepFailed"),
}
"""Module -> what it defines. All else is in `workloads`."""


class _Door(ModuleType):
    @property
    def report(self) -> Any:
        """What training scripts call. The package `orchestrator.report` has the same name, and
        Python would set it here when that is imported."""
        from orchestrator.programs.reporting import report

        return report

    @report.setter
    def report(self, package: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Door


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")
    found = (module for module, names in _WHERE.items() if name in names)
    return getattr(import_module(next(found, "orchestrator.workloads")), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
