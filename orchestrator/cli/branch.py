"""The command `branch`: it trains the trunk and the branches of a branch file, prints a verdict for
each point, and confirms the schedules that follow."""

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
from orchestrator.cli.runs import refuse_both
from orchestrator.cli.sessions import how_to_train, tell
from orchestrator.sweeping import session


def branch(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME", help="Branch file, or the name of a branch file of the project."
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(help="Folder of the run, or s3://BUCKET/FOLDER. Default: runs/NAME."),
    ] = None,
    set_: SetOption = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    data_dir: DataOption = None,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm",
            help="Afterwards train with the schedules and with the constant batch size, to the end "
            "of the budget, to compare them.",
        ),
    ] = False,
    yes: YesOption = False,
    ray: RayOption = True,
    as_json: JsonOption = False,
) -> int:
    """Find when to enlarge the batch along one training. It branches off at points of the training
    with larger batch sizes, and makes a schedule of batch sizes from the results."""
    from orchestrator.planning.branch_file import find_branch_file, load_branches

    how = how_to_train(address=address, data_dir=data_dir, yes=yes, ray=ray)
    asked = ["confirm=true"] if confirm else []
    described = load_branches(find_branch_file(file), [*(set_ or []), *asked])
    if cluster is not None:
        refuse_both(address)
        return remote.sweep(cluster, described, out, data_dir, None, yes=yes, as_json=as_json)
    return tell(session.sweep(described, out, how), as_json=as_json)
