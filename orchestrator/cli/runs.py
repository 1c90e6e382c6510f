"""The commands that make a run, continue it and stop it: sweep, branch, resume and stop."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import typer

from orchestrator.cli import remote
from orchestrator.cli.options import (
    AddressOption,
    ClusterOption,
    DataOption,
    JsonOption,
    OutOption,
    RayOption,
    RunArgument,
    SetOption,
    SweepArgument,
    TrackOption,
    YesOption,
)
from orchestrator.cli.sessions import how_to_train, refuse_together, tell
from orchestrator.cli.terminal import command, say


def sweep(
    file: SweepArgument = None,
    out: OutOption = None,
    set_: SetOption = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    data_dir: DataOption = None,
    yes: YesOption = False,
    track: TrackOption = None,
    ray: RayOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run every study of a sweep file. Continues the run if it was started before."""
    from orchestrator.planning.sweep_file import find_sweep_file, load_sweep

    refuse_together(address, cluster, ray)
    described = load_sweep(find_sweep_file(file), set_ or [])
    if cluster is not None:
        return remote.sweep(cluster, described, out, data_dir, track, yes=yes, as_json=as_json)
    from orchestrator.sweeping import session

    how = how_to_train(address=address, data_dir=data_dir, track=track, yes=yes, ray=ray)
    return tell(session.sweep(described, out, how), as_json=as_json)


def branch(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME", help="Branch file, or the name of a branch file of the project."
        ),
    ],
    out: OutOption = None,
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
    ray: RayOption = None,
    as_json: JsonOption = False,
) -> int:
    """Find when to enlarge the batch along one training. It branches off at points of the training
    with larger batch sizes, and makes a schedule of batch sizes from the results."""
    from orchestrator.planning.branch_file import find_branch_file, load_branches

    refuse_together(address, cluster, ray)
    asked = ["confirm=true"] if confirm else []
    described = load_branches(find_branch_file(file), [*(set_ or []), *asked])
    if cluster is not None:
        return remote.sweep(cluster, described, out, data_dir, None, yes=yes, as_json=as_json)
    from orchestrator.sweeping import session

    how = how_to_train(address=address, data_dir=data_dir, yes=yes, ray=ray)
    return tell(session.sweep(described, out, how), as_json=as_json)


def resume(
    path: RunArgument,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    data_dir: DataOption = None,
    track: TrackOption = None,
    ray: RayOption = None,
    as_json: JsonOption = False,
) -> int:
    """Continue a run: train what its files do not hold yet."""
    from orchestrator.results import RunFiles

    refuse_together(address, cluster, ray)
    if cluster is not None:
        return remote.resume(cluster, path, data_dir, track, as_json=as_json)
    run = RunFiles.open(path)
    from orchestrator.sweeping import session

    how = how_to_train(address=address, data_dir=data_dir, track=track, yes=True, ray=ray)
    return tell(session.resume(run, how), as_json=as_json)


def stop(path: RunArgument, cluster: ClusterOption = None) -> None:
    """End a running sweep as Ctrl-C does, and keep what it measured."""
    from orchestrator.results import RunFiles

    if cluster is not None:
        remote.stop(cluster, path)
        return
    run = RunFiles.open(path)
    process = run.writer()
    if process is None:
        say(f"Nothing is running in {run.place}.")
        return
    os.kill(process, signal.SIGTERM)
    say(f"Process {process} was told to end and writes its results ...")
    while run.writer() == process:
        time.sleep(0.1)
    say(f"Go on with: {command('resume', run.place)}")
