"""What a sweep would come to."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import (
    DONE,
    AddressOption,
    DataOption,
    JsonOption,
    SetOption,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cluster import Cluster
    from orchestrator.records import Study
    from orchestrator.results import Run
    from orchestrator.sweep import Sweep


def plan(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE|NAME]", help="Default: the quickstart.")
    ] = None,
    set_: SetOption = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Time a few dozen steps of each study first.")
    ] = False,
    pilot: Annotated[
        int | None,
        typer.Option(min=1, help="Train so many trials of each study first: a middle estimate."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks that train at once [what the cluster has now]."),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Of a device-hour.")] = None,
    address: AddressOption = None,
    data_dir: DataOption = None,
    as_json: JsonOption = False,
) -> int:
    """How many trials a sweep has, and in what shapes; with measured speeds also how long it takes
    and what it costs, from the best to the worst case."""
    from orchestrator.plan import calibration_of, forecast, pilots_among, pilots_of, speeds_of
    from orchestrator.studies import plan as plan_of
    from orchestrator.sweep import find_sweep_file, load_sweep
    from orchestrator.terminal import forecast_in_words, forecast_table, print_table, say

    sweep = load_sweep(find_sweep_file(file), set_ or [])
    studies = plan_of(sweep, data_dir).studies
    speeds = pilots = None
    if calibrate or pilot is not None:
        from orchestrator.cluster import connect, places_for

        with (
            tempfile.TemporaryDirectory(prefix="orchestrate-plan-") as folder,
            connect(address, Path(folder) / "log.txt") as cluster,
        ):
            slots = slots or places_for(sweep.resources, cluster)
            say(f"Timing {len(studies)} studies ...")
            short = calibration_of(studies)
            speeds = speeds_of(_tried(folder, "short", short, sweep, cluster, data_dir))
            if pilot is not None:
                say(f"Training {pilot} trials of each ...")
                few = pilots_among(studies, pilot)
                pilots = pilots_of(_tried(folder, "pilot", few, sweep, cluster, data_dir))
    found = forecast(
        studies, sweep.resources.ranks, speeds=speeds, pilots=pilots, slots=slots,
        price_per_device_hour=price or sweep.report.price_per_device_hour,
    )  # fmt: skip
    if as_json:
        print_json(found.to_json())
        return DONE
    print_table(forecast_table(found))
    print(f"\n{forecast_in_words(found)}")
    return DONE


def _tried(
    folder: str,
    name: str,
    studies: Sequence[Study],
    sweep: Sweep,
    cluster: Cluster,
    data_dir: Path | None,
) -> Run:
    """A run of these studies, beside the one that is planned."""
    from orchestrator.cluster import run_trials
    from orchestrator.progress import Progress
    from orchestrator.records import SweepFailed
    from orchestrator.results import Run
    from orchestrator.search import Director
    from orchestrator.terminal import say, showing

    run = Run(Path(folder) / name)
    run.create(sweep.resolved(), studies, {})
    director = Director(studies, sweep.seed, lambda study: sweep.resources.ranks(study.batch_size))
    director.begin()
    progress = Progress(studies)
    try:
        with showing(progress):
            run_trials(run, director, sweep, cluster=cluster, progress=progress, data_dir=data_dir)
    except SweepFailed as error:
        say(str(error))
    return run
