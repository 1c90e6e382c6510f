"""What a sweep would come to, as a table and in words."""

from __future__ import annotations

from rich.filesize import decimal
from rich.table import Table

from orchestrator.analysis import in_time
from orchestrator.planning.outlook import Between, Outlook, StudyOutlook


def outlook_table(outlook: Outlook) -> Table:
    """What each study of a sweep comes to, before it starts."""
    rows = [_outlook_cells(one) for one in outlook.studies]
    values = {name: {row[name] for row in rows} for name in rows[0]}
    # What is the same for all is said once, above; or not at all.
    same = {name for name in ("Workload", "Ranks", "Trials") if len(values[name]) == 1}
    first = outlook.studies[0]
    said = {
        "Workload": first.workload,
        "Trials": f"{first.trials:,} trials each",
        "Ranks": f"on {first.ranks:,} ranks" if first.ranks > 1 else "",
    }
    table = Table(
        box=None, pad_edge=False, title_justify="left", title_style="",
        title=", ".join(words for name, words in said.items() if name in same and words) or None,
    )  # fmt: skip
    names = [name for name in rows[0] if name not in same and values[name] != {""}]
    for name in names:
        if name in ("Workload", "Recipe", "Fits"):
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _outlook_cells(one: StudyOutlook) -> dict[str, str]:
    low, _, high = one.steps
    speed, all_of_it = one.speed, one.rank_seconds
    return {
        "Workload": one.workload,
        "Recipe": one.recipe,
        "Batch size": f"{one.batch_size:,}",
        "Ranks": str(one.ranks),
        "Trials": str(one.trials),
        "Steps in all": f"{low:,} to {high:,}",
        "Per step": "" if speed is None else in_time(speed.step_seconds),
        "Memory": "" if speed is None or not speed.memory else decimal(speed.memory),
        "Device-time": "" if all_of_it is None else _range(all_of_it._replace(middle=None)),
        "Fits": "not at all" if one.fits is False else _cut(one),
    }


def _cut(one: StudyOutlook) -> str:
    micro = one.speed and one.speed.micro_batch
    return f"{micro:,} examples at once" if micro else ""


def outlook_in_words(outlook: Outlook) -> str:
    """All studies together."""
    ranks = max(one.ranks for one in outlook.studies)
    shapes = f"of up to {ranks} ranks" if ranks > 1 else "of one rank"
    said = [f"{len(outlook.studies)} studies, {outlook.trials:,} trials {shapes}."]
    if outlook.device_hours is None:
        said.append("How long it takes is told by --calibrate, which times some steps of each.")
        return " ".join(said)
    said.append(f"Device-time: {_range(outlook.device_hours.mapped(lambda h: 3600 * h))}.")
    for slots, seconds in outlook.seconds.items():
        said.append(f"From start to end on {slots}: {_range(seconds)}.")
    if outlook.money is not None:
        low, middle, high = outlook.money
        about = "" if middle is None else f", about {middle:,.3g}"
        said.append(f"Money, while no machine idles: {low:,.3g} to {high:,.3g}{about}.")
    if outlook.device_hours.middle is None:
        said.append("--pilot 3 narrows that down.")
    if dear := [one for one in outlook.studies if one.dear]:
        worst = max(dear, key=lambda one: one.rank_seconds.high if one.rank_seconds else 0)
        said.append(f"{worst.workload}, {worst.recipe} at {worst.batch_size:,}: {worst.dear}")
    return " ".join(said)


def _range(seconds: Between) -> str:
    about = "" if seconds.middle is None else f", about {in_time(seconds.middle)}"
    return f"{in_time(seconds.low)} to {in_time(seconds.high)}{about}"
