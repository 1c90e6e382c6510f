"""From a branch file to verdicts along its trunk, and to schedules that are confirmed."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli import remote
from orchestrator.cli.options import (
    AddressOption,
    ClusterOption,
    DataOption,
    JsonOption,
    RayOption,
    SetOption,
    YesOption,
)
from orchestrator.cli.runs import refuse_both, run_described
from orchestrator.cli.training import How


def branch(
    file: Annotated[
        str, typer.Argument(metavar="FILE|NAME", help="A trunk, and what goes on from it.")
    ],
    out: Annotated[str | None, typer.Option(help="The run folder [runs/NAME].")] = None,
    set_: SetOption = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
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

    how = How(address=address, data_dir=data_dir, ray=ray)
    asked = ["confirm=true"] if confirm else []
    described = load_branches(find_branch_file(file), [*(set_ or []), *asked])
    if cluster is not None:
        refuse_both(address)
        return remote.sweep(cluster, described, out, data_dir, None, yes=yes, as_json=as_json)
    return run_described(described, out, how, yes=yes, as_json=as_json)
