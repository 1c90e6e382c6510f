"""The report's part on what each batch size costs, as HTML."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from orchestrator.analysis import in_time
from orchestrator.report.content import Panel
from orchestrator.report.figures.cost import device_seconds_against_time, examples_against_steps
from orchestrator.report.sections import Show
from orchestrator.report.tables import in_devices

MOST_TOLD = 8
"""The most Pareto-optimal choices in the text; the figure shows all."""


def costs(panel: Panel, show: Show) -> str:
    if not panel.costs:
        return ""
    shown = show(
        examples_against_steps(panel.costs, panel.recipes),
        "Work against time",
        _optimal(f"{cost.recipe} {cost.batch_size:,}" for cost in panel.costs if cost.pareto),
        "Steps stand for time, if there are devices enough for the whole batch; examples stand for "
        "work. A filled mark is Pareto-optimal: no other batch size takes fewer steps without "
        "taking more examples.",
    )
    priced = [cost for cost in panel.costs if cost.priced]
    if priced:
        price = panel.settings.price_per_device_hour
        front = (
            f"{cost.recipe} {cost.batch_size:,} on {in_devices(one.devices)}"
            for cost in priced
            for one in cost.priced
            if one.pareto
        )
        shown += show(
            device_seconds_against_time(priced, panel.recipes),
            "Device-seconds against seconds",
            _optimal(front),
            "Each batch size is a line from one device to as many as it keeps half busy. A filled "
            "mark is Pareto-optimal among the numbers of devices on which steps were timed. On "
            "other numbers, these are the times if exchanging gradients took no time."
            + ("" if price is None else f" A device-hour costs {price:g}."),
        )
        shown += _if_free(panel)
    return shown


def _if_free(panel: Panel) -> str:
    """Says what more devices than were timed could bring."""
    free = None if panel.advice is None else panel.advice.if_free
    if free is None:
        return ""
    (one,) = free.priced
    return (
        f'<p class="lead">If exchanging gradients took no time, {escape(free.recipe)} at batch '
        f"size {free.batch_size:,} would take {in_time(one.seconds)} on {in_devices(one.devices)}. "
        f"Nobody has timed that: train with several ranks (<code>resources</code>) to know.</p>"
    )


def _optimal(front: Iterable[str]) -> str:
    names = [*front]
    more = len(names) - MOST_TOLD
    rest = f" and {more:,} more" if more > 0 else ""
    return f"Pareto-optimal: {', '.join(names[:MOST_TOLD])}{rest}."


def costs_found(panel: Panel) -> str:
    best = sum(cost.pareto for cost in panel.costs)
    devices = {one.devices for cost in panel.costs for one in cost.priced if one.pareto}
    said = f"{best:,} of {len(panel.costs):,} batch sizes are Pareto-optimal in steps and examples"
    several = max(devices, default=1)
    return f"{said}; up to {in_devices(several)} pay off" if several > 1 else said
