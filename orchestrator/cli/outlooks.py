"""The outlook of a sweep (trials, time and money), as a table and in words."""

from __future__ import annotations

from rich.filesize import decimal
from rich.table import Table

from orchestrator.analysis import in_time
from orchestrator.cli.terminal import table_of
from orchestrator.planning.outlook import Between, Outlook, StudyOutlook


def outlook_table(outlook: Outlook) -> Table:
    """The outlook of each study of a sweep, as one row of a table."""
    return table_of(
        [_outlook_cells(study) for study in outlook.studies],
        numbers=("Batch size", "Ranks", "Trials", "Total steps", "Time per step", "Memory",
                 "Device-time"),
        shared={"Workload": "{}", "Trials": "{} trials each", "Ranks": "on {}"},
    )  # fmt: skip


def _outlook_cells(study: StudyOutlook) -> dict[str, str]:
    low, high = study.steps
    speed, seconds = study.speed, study.rank_seconds
    fits = f"{speed.micro_batch:,} examples at once" if speed and speed.micro_batch else ""
    if study.fits is False:
        fits = "not at all"
    return {
        "Workload": study.workload,
        "Recipe": study.recipe,
        "Batch size": f"{study.batch_size:,}",
        "Ranks": f"{study.ranks:,} ranks" if study.ranks > 1 else "",
        "Trials": f"{study.trials:,}",
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
    said = [f"{len(outlook.studies)} studies, {outlook.trials:,} trials {shapes}."]
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
    return f"{in_time(seconds.low)} to {in_time(seconds.high)}"
