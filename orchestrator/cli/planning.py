"""The command `plan`: how many trials a sweep has, how long they take and what they cost."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from orchestrator.cli.options import (
    AddressOption,
    DataOption,
    JsonOption,
    PriceOption,
    SetOption,
    SweepArgument,
    print_json,
    refuse_both,
)
from orchestrator.cli.terminal import answer, print_table, say, showing
from orchestrator.records import BadInput, counted, grouped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.planning.machines import Cluster
    from orchestrator.planning.outlook import Between, Outlook, Speed, StudyOutlook
    from orchestrator.planning.sweep import Faults, Resources, Sweep
    from orchestrator.records import Study, StudyKey
    from orchestrator.results import RunFiles

ASKED_ABOVE_STEPS = 20_000_000
"""Steps of a sweep in the worst case above which a command asks before it starts. At one
millisecond per step they take one device six hours."""


def plan(
    file: SweepArgument = None,
    set_: SetOption = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Time a few dozen steps of each study first.")
    ] = False,
    slots: Annotated[
        list[int] | None,
        typer.Option(
            metavar="NUMBER",
            min=1,
            max=1_000_000,
            help="Number of ranks that train at the same time. Repeatable. Default: as many as the "
            "cluster has room for.",
        ),
    ] = None,
    devices: Annotated[
        list[int] | None,
        typer.Option(
            metavar="NUMBER",
            min=1,
            max=10_000,
            help="Time a step of each study on this number of devices instead. Repeatable.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Keep the times of --devices in this run, for its page."),
    ] = None,
    price: PriceOption = None,
    address: AddressOption = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster", metavar="FILE", help="Cluster file whose machines and prices to use."
        ),
    ] = None,
    data_dir: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the trials, time and cost of a sweep or of branches. Time and cost need measured
    step times (--calibrate) and are given from the best to the worst case."""
    from orchestrator.planning.branch_file import FOLDER, load_either
    from orchestrator.planning.branch_plan import foreseen
    from orchestrator.planning.machines import fit_resources, ranks_at_once
    from orchestrator.planning.outlook import outlook
    from orchestrator.planning.studies import plan as plan_of
    from orchestrator.planning.sweep_file import find_sweep_file
    from orchestrator.training import gpus_here

    if keep is not None and not devices:
        raise BadInput("--keep keeps the times of --devices: give both.", code="missing-option")
    useless = {"slots": slots, "price": price}
    refuse_both({"devices": devices}, {"calibrate": calibrate, **useless})
    sweep = load_either(find_sweep_file(file, FOLDER), set_ or [])
    if price is None:
        price = sweep.report.price_per_device_hour
    machines = None if cluster is None else machines_of(cluster)
    if machines is not None:
        room = ranks_at_once(fit_resources(sweep.resources, machines), machines)
        slots = slots or [room]
        if price is None and machines.price_per_hour is not None:
            price = machines.price_per_hour / room
    planned = plan_of(sweep, data_dir)
    studies = foreseen(sweep, planned.studies)
    if devices:
        run = None if keep is None else _keeper(keep, planned.studies)
        times = _times_on(sorted({*devices}), planned.studies, sweep, address, data_dir)
        if run is not None:
            run.write_timed({**run.timed(), **times})
        _tell_times(times, as_json=as_json)
        return
    if not calibrate and (given := [f"--{name}" for name, value in useless.items() if value]):
        say(f"{' and '.join(given)} can't be used without step times: add --calibrate.")
    for remark in planned.remarks:
        say(remark)
    if sweep.branch is not None:
        say("At least so many trainings: rates that are added beside the best come on top.")
    speeds = None
    if calibrate:
        ((speeds, room),) = _measured([(studies, sweep)], address, data_dir)
        slots = slots or [room]
    else:
        gpus = gpus_here() if machines is None else machines.gpus
        _together(studies, sweep.resources.on(gpus), data_dir)
    found = outlook(
        studies, sweep.resources.ranks, speeds=speeds, slots=slots or (),
        price_per_device_hour=price,
    )  # fmt: skip
    if as_json:
        print_json(asdict(found))
        return
    print_table(
        [_outlook_cells(study) for study in found.studies],
        numbers=("Batch size", "Ranks", "Trials", "Total steps", "Time per step", "Memory",
                 "Device-time"),
        shared={"Workload": "{}", "Trials": "{} each", "Ranks": "on {}"},
    )  # fmt: skip
    answer(f"\n{outlook_in_words(found)}")


def _together(
    studies: Sequence[Study], resources: Resources, data_dir: Path | None
) -> dict[StudyKey, int]:
    """The widths of the studies whose trials are stacked. Says which ones are not, and why."""
    from orchestrator.analysis.words import listed
    from orchestrator.planning.widths import widths_of

    widths = widths_of(studies, resources, data_dir, {})
    alone = [key for key, (width, reason) in widths.items() if width == 1 and reason]
    for reason, keys in grouped(alone, lambda key: widths[key][1]).items():
        names = listed([*map(str, keys)], 3)
        say(f"Trials are trained one at a time, not stacked: {names}, since {reason}.")
    return {key: width for key, (width, _) in widths.items() if width > 1}


def machines_of(file: Path) -> Cluster | None:
    """The machines that a cluster file describes, which are said."""
    from orchestrator.planning.machines import described_in

    if (cluster := described_in(file)) is None:
        say(f"{file} states no `resources` for its machines, so the estimate can't use them.")
    else:
        say(f"{file}: {cluster}")
    return cluster


def agree(found: Outlook | None, *, yes: bool) -> None:
    """Asks before a large sweep is started, or one whose size can't be estimated on this machine.
    Raises `BadInput` unless the answer is yes."""
    from orchestrator.cluster.ray_death import death_before

    if yes or death_before() is not None:  # then the user has agreed before
        return
    if found is None:
        why = "Its data set is not on this machine, so the number of steps can't be estimated here."
    else:
        steps = sum(study.steps.high for study in found.studies)
        if steps <= ASKED_ABOVE_STEPS:
            return
        why = f"{outlook_in_words(found)} It may take {steps:,} steps."
    if not sys.stdin.isatty():
        raise BadInput(
            f"{why} A sweep that may take more than {ASKED_ABOVE_STEPS:,} steps starts only after "
            f"a confirmation. Look at `orchestrate plan`, then add --yes.",
            code="not-confirmed",
        )
    say(why)
    if not typer.confirm("Start it?", err=True):
        raise BadInput("Not started. `orchestrate plan` shows what it takes.", code="not-confirmed")


def _times_on(
    devices: Sequence[int],
    studies: Sequence[Study],
    sweep: Sweep,
    address: str | None,
    data_dir: Path | None,
) -> dict[tuple[StudyKey, int], float]:
    """Seconds of a step of each study on each number of devices."""
    variants = []
    for count in devices:
        spread = {"examples_per_device": 1, "max_devices": count, "stack": 1}
        resources = sweep.resources.model_copy(update=spread)
        enough = [study for study in studies if study.batch_size >= count]
        variants.append((enough, sweep.model_copy(update={"resources": resources})))
    measured = _measured(variants, address, data_dir)
    return {
        (key, count): speed.step_seconds
        for count, (speeds, _) in zip(devices, measured, strict=True)
        for key, speed in speeds.items()
        if speed is not None
    }


def _keeper(path: str, studies: Sequence[Study]) -> RunFiles:
    """The run that is to keep the times of these studies."""
    from orchestrator.results import RunFiles

    run = RunFiles.open(path)
    known = {study.key for study in run.studies()}
    if foreign := [study.key for study in studies if study.key not in known]:
        raise BadInput(f"{path} has no study {foreign[0]}.", code="unknown-name")
    return run


def _tell_times(times: Mapping[tuple[StudyKey, int], float], *, as_json: bool) -> None:
    from orchestrator.analysis.words import in_time

    if as_json:
        print_json([asdict(key) | {"devices": n, "seconds": s} for (key, n), s in times.items()])
        return
    rows: dict[StudyKey, dict[str, str]] = {}
    for (key, count), seconds in times.items():
        size = {"Batch size": f"{key.batch_size:,}"}
        cells = rows.setdefault(key, {"Workload": key.workload, "Recipe": key.recipe, **size})
        cells[counted(count, "device")] = in_time(seconds)
    names = dict.fromkeys(name for cells in rows.values() for name in cells)
    numbers = [*names][2:]
    print_table([dict.fromkeys(names, "") | c for c in rows.values()], numbers=numbers)


def _measured(
    variants: Sequence[tuple[Sequence[Study], Sweep]], address: str | None, data_dir: Path | None
) -> list[tuple[Mapping[StudyKey, Speed | None], int]]:
    """For each sweep, the speeds of its studies on the machines that will train them, and for how
    many ranks there is room."""
    from orchestrator.cluster.connect import connect

    with (
        tempfile.TemporaryDirectory(prefix="orchestrate-plan-") as folder,
        connect(address, Path(folder) / "log.txt", say=say) as cluster,
    ):
        return [
            _speeds(studies, sweep, cluster, Path(folder) / str(number), data_dir)
            for number, (studies, sweep) in enumerate(variants)
        ]


def _speeds(
    studies: Sequence[Study], sweep: Sweep, cluster: Cluster, folder: Path, data_dir: Path | None
) -> tuple[Mapping[StudyKey, Speed | None], int]:
    from orchestrator.cluster.sweeps import train_apart
    from orchestrator.planning.machines import fit_resources, ranks_at_once
    from orchestrator.planning.outlook import calibration_of, speeds_of
    from orchestrator.records import SweepFailed
    from orchestrator.results import RunFiles
    from orchestrator.sweeping.progress import Progress

    resources = fit_resources(sweep.resources, cluster)
    together = {} if resources.stack == 1 else _together(studies, resources, data_dir)
    room = ranks_at_once(resources, cluster)
    say(f"Timing {counted(len(studies), 'study')} ...")

    def train(name: str, some: Sequence[Study]) -> RunFiles:
        """Trains these studies in a run of their own, apart from the planned one."""
        run, progress = RunFiles(folder / name), Progress(some)
        try:
            with showing(progress):
                train_apart(run, sweep, some, cluster, data_dir=data_dir, progress=progress)
        except SweepFailed as error:
            say(str(error))
        return run

    speeds = {s.key: _timed(s, resources, sweep.faults) for s in studies if s.program is not None}
    classes = [study for study in studies if study.program is None]
    if short := calibration_of(classes, widths=together):
        speeds |= speeds_of(train("short", short))
    if longer := calibration_of(classes, speeds, together):
        say(f"Timing the {len(longer)} quickest of them over more steps ...")
        speeds |= speeds_of(train("longer", longer))
    return speeds, room


def _timed(study: Study, resources: Resources, faults: Faults) -> Speed | None:
    """The speed of a program on this machine. Says why if it can't be timed."""
    from orchestrator.planning.outlook import program_speed
    from orchestrator.programs.hearing import ProgramFailed

    try:
        if (speed := program_speed(study, resources.devices(study, faults.hang_seconds))) is None:
            say(f"{study.key}: it reported less than twice, so its steps can't be timed.")
    except ProgramFailed as error:
        say(f"{study.key}: {error}")
        return None
    return speed


def _outlook_cells(study: StudyOutlook) -> dict[str, str]:
    from orchestrator.analysis.words import in_time

    low, high = study.steps
    speed, seconds = study.speed, study.rank_seconds
    again = f" and {counted(study.repeats, 'repeat')}" if study.repeats else ""
    fits = f"{speed.micro_batch:,} examples at once" if speed and speed.micro_batch else ""
    if study.fits is False:
        fits = "not at all"
    return {
        "Workload": study.workload,
        "Recipe": study.recipe,
        "Batch size": f"{study.batch_size:,}",
        "Ranks": f"{study.ranks:,} ranks" if study.ranks > 1 else "",
        "Trials": f"{counted(study.trials - study.repeats, 'trial')}{again}",
        "Total steps": f"{low:,} to {high:,}",
        "Time per step": "" if speed is None else in_time(speed.step_seconds),
        "Memory": "" if speed is None or not speed.memory else decimal(speed.memory),
        "Device-time": "" if seconds is None else _range(seconds),
        "Fits": fits,
    }


def outlook_in_words(outlook: Outlook) -> str:
    """Sentences about the whole sweep: its trials, time and money."""
    ranks = max(study.ranks for study in outlook.studies)
    shapes = f"on up to {ranks} ranks each" if ranks > 1 else "on one rank each"
    said = [
        f"{counted(len(outlook.studies), 'study')}, {counted(outlook.trials, 'training')} {shapes}."
    ]
    if outlook.device_hours is None:
        said.append("--calibrate measures step times to estimate how long the sweep takes.")
        return " ".join(said)
    said.append(
        f"Device-time of all trials: {_range(outlook.device_hours.mapped(lambda h: 3600 * h))}."
    )
    for slots, seconds in outlook.seconds.items():
        noun = "slot" if slots == 1 else "slots"
        said.append(f"Time from start to end on {slots} {noun}: {_range(seconds)}.")
    if outlook.money is not None:
        low, high = outlook.money
        said.append(f"Cost, if no machine ever idles: {low:,.3g} to {high:,.3g}.")
    said.append(
        "A sweep of a few trials (--set search.trials=3) shows where trials end; its run may grow."
    )
    if dear := [study for study in outlook.studies if study.dear]:
        worst = max(dear, key=lambda study: study.rank_seconds.high if study.rank_seconds else 0)
        said.append(f"{worst.workload}, {worst.recipe} at {worst.batch_size:,}: {worst.dear}")
    return " ".join(said)


def _range(seconds: Between) -> str:
    from orchestrator.analysis.words import in_time

    return f"{in_time(seconds.low)} to {in_time(seconds.high)}"
