"""Programs: trainings that are commands of the user, of which we hear only what they report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Source = Literal["report", "stdout", "jsonl", "tensorboard"]


@dataclass(frozen=True, kw_only=True)
class Heard:
    """Where the numbers of a program are found."""

    source: Source = "report"
    """`report`: the program calls `orchestrator.report`, or writes lines of JSON to the file that
    is named in its environment. `stdout`: its output. `jsonl`: a file of lines of JSON that it
    writes. `tensorboard`: its event files."""
    pattern: str = ""
    """Regular expression for a line of the output. Its group `step` and at least another one are
    named; their names are those of the metrics."""
    place: str = ""
    """The file or folder, which may hold placeholders."""
    step: str = "step"
    """The key of the step in lines of JSON."""

    @property
    def asks(self) -> bool:
        """Whether such a program asks whether it should go on, so that it may end by itself."""
        return self.source == "report"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command that trains one trial."""

    command: tuple[str, ...]
    """Its arguments, with placeholders such as `{learning_rate}`."""
    function: str = ""
    """The place of the Python function that the command calls; empty for other programs."""
    launch: Literal["once", "ranks"] = "once"
    """`once`: the command starts a process for each of its devices itself. `ranks`: it is started
    once for each device."""
    heard: Heard = Heard()
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Name here -> name of the program's option, in `{args}`."""
    max_per_device: int | None = None
    """Most examples that a device takes at once; more are accumulated over several passes."""
    tokens_per_example: int | None = None
    resumes: bool = False
    """Whether the program goes on from what it finds in its folder."""
    every: int | None = None
    """Least number of steps between two reports, if that is known."""
