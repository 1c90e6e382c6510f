"""From a branch file to verdicts along its trunk, and to schedules that are confirmed."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.branching import answer_of, write_up
from orchestrator.cli.options import (
    DONE,
    FAILED,
    GOAL_UNREACHED,
    AddressOption,
    DataOption,
    JsonOption,
    RayOption,
    SetOption,
    YesOption,
)
from orchestrator.cli.runs import run_described
from orchestrator.cli.training import How


def branch(
    file: Annotated[
        str, typer.Argument(metavar="FILE|NAME", help="A trunk, and what goes on from it.")
    ],
    out: Annotated[str | None, typer.Option(help="The run folder [runs/NAME].")] = None,
    set_: SetOption = None,
    address: AddressOption = None,
    data_dir: DataOption = None,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm", help="Train with the schedules and with the constant batch, to the end."
        ),
    ] = False,
    yes: YesOption = False,
    ray: RayOption = True,
    as_json: JsonOption = False,
) -> int:
    """How large the batch may be at points of one training, and the schedule that follows."""
    from orchestrator.planning.branch_file import find_branch_file, load_branches
    from orchestrator.results import Run

    how = How(address=address, data_dir=data_dir, ray=ray)
    described = load_branches(find_branch_file(file), set_ or [])
    run = Run(out or f"runs/{described.name}")
    code = run_described(described, str(run.place), how, yes=yes, as_json=as_json, quietly=confirm)
    if not confirm:
        return code
    answer = answer_of(run, described, run.studies())
    if code == DONE:
        there = str(run.place / "confirm")
        code = run_described(answer.confirming, there, how, yes=yes, as_json=False, quietly=True)
        code = DONE if code == GOAL_UNREACHED else code  # all of them train to the end
    written = write_up(run, answer, as_json)
    return code if written or code != DONE else FAILED
