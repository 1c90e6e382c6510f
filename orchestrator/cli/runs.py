"""The commands that make a run, continue it and stop it."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import typer

from orchestrator.cli import remote
from orchestrator.cli.options import (
    DONE,
    AddressOption,
    ClusterOption,
    DataOption,
    JsonOption,
    RayOption,
    RunArgument,
    SetOption,
    TrackOption,
    YesOption,
)
from orchestrator.cli.sessions import how_to_train, tell
from orchestrator.records import BadInput
from orchestrator.sweeping import session


def sweep(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|NAME]",
            help="Sweep file, or the name of a sweep of the project. Default: the quickstart.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="Folder of the run, or s3://BUCKET/FOLDER. Default: runs/NAME."),
    ] = None,
    set_: SetOption = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    data_dir: DataOption = None,
    yes: YesOption = False,
    track: TrackOption = None,
    ray: RayOption = True,
    as_json: JsonOption = False,
) -> int:
    """Run every study of a sweep file. Continues the run if it was started before."""
    from orchestrator.planning.sweep_file import find_sweep_file, load_sweep

    how = how_to_train(address=address, data_dir=data_dir, track=track, yes=yes, ray=ray)
    described = load_sweep(find_sweep_file(file), set_ or [])
    if cluster is not None:
        refuse_both(address)
        return remote.sweep(cluster, described, out, data_dir, track, yes=yes, as_json=as_json)
    return tell(session.sweep(described, out, how), as_json=as_json)


def resume(
    path: RunArgument,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    data_dir: DataOption = None,
    track: TrackOption = None,
    ray: RayOption = True,
    as_json: JsonOption = False,
) -> int:
    """Continue a run: train what its files do not hold yet."""
    from orchestrator.results import Run

    how = how_to_train(address=address, data_dir=data_dir, track=track, ray=ray)
    if cluster is not None:
        refuse_both(address)
        return remote.resume(cluster, path, data_dir, track, as_json=as_json)
    return tell(session.resume(Run.open(path), how), as_json=as_json)


def stop(path: RunArgument, cluster: ClusterOption = None) -> int:
    """End a running sweep as Ctrl-C does, and keep what it measured."""
    from orchestrator.cli.terminal import say
    from orchestrator.results import Run

    if cluster is not None:
        return remote.stop(cluster, path)
    run = Run.open(path)
    process = run.writer()
    if process is None:
        say(f"Nothing is running in {run.place}.")
        return DONE
    os.kill(process, signal.SIGTERM)
    say(f"Process {process} was told to end and writes its results ...")
    while run.writer() == process:
        time.sleep(0.1)
    say(f"Go on with: orchestrate resume {run.place}")
    return DONE


def refuse_both(address: str | None) -> None:
    if address is not None:
        raise BadInput(
            "Give either --address or --cluster, not both: --address trains from this machine, "
            "--cluster submits a job to the head of a cluster.",
            code="conflicting-options",
        )
