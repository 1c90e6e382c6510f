"""The answers in words, shared by the page and the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.analysis.branches import Verdict
from orchestrator.analysis.curve import SOFTNESS
from orchestrator.analysis.errors import FEWEST_TRIALS
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.scaling import BENDS, Scaling
from orchestrator.analysis.schedules import Confirmed
from orchestrator.records import Study, grouped
from orchestrator.results import FrontierRow


def headline(scaling: Scaling) -> str:
    """Which batch size takes a fifth more examples than the fewest, from which one on a larger
    saves less than a tenth of the steps, and the critical batch size."""
    useful, critical = scaling.max_useful_batch_size, scaling.critical_batch_size
    if useful is None or scaling.largest is None:
        return f"{scaling.recipe}: {scaling.verdict}."
    said = [_wastes(scaling)]
    if scaling.still_falls:
        said.append(f"steps still fall at {scaling.largest:,}, the largest {_tested(scaling)}")
    else:
        beyond = f"beyond {in_words(useful)} larger batches up to {scaling.largest:,}"
        said.append(f"{beyond} save less than a tenth of the steps")
    if critical is not None:
        said.append(f"critical batch size {_critical(scaling)}")
    return f"{scaling.recipe}: {'; '.join(said)}."


def _tested(scaling: Scaling) -> str:
    return "left" if scaling.left_out else "tested"


def _wastes(scaling: Scaling) -> str:
    """Says which batch size takes a fifth more examples than the fewest, as far as it is known."""
    fifth, largest = scaling.fifth_more, scaling.largest
    assert fifth is not None
    assert largest is not None
    low, high = fifth.ends
    if scaling.critical_by_examples_is == "below the smallest tested":
        smallest = f"the smallest batch size {_tested(scaling)}"
        return f"{smallest} already takes a fifth more examples than the fewest"
    if scaling.critical_by_examples_is == "at most":
        if high == math.inf:
            return "those tested do not tell which batch size takes a fifth more examples"
        return f"batch size {_rounded(high)} or less takes a fifth more examples"
    if low >= largest:
        return f"no batch size up to {largest:,} takes a fifth more examples than the fewest"
    than = "" if fifth.value >= largest else " than the fewest"
    return f"batch size {fifth_in_words(scaling)} takes a fifth more examples{than}"


def fifth_in_words(scaling: Scaling) -> str:
    """The batch size that takes a fifth more examples, for a table; if nothing was fitted, why."""
    fifth, bound = scaling.fifth_more, scaling.critical_by_examples_is
    if fifth is None or scaling.largest is None:
        return scaling.verdict
    if bound == "below the smallest tested":
        return bound
    low, high = fifth.ends
    if bound == "at most":
        return "not bounded" if high == math.inf else f"{_rounded(high)} or less"
    if fifth.value >= scaling.largest:
        return f"{_rounded(low)} or more" if low < scaling.largest else f"over {scaling.largest:,}"
    return in_words(fifth)


def bend_cells(scaling: Scaling) -> dict[str, str]:
    """The numbers of the headline, for a table."""
    useful = scaling.max_useful_batch_size
    return {
        "Recipe": scaling.recipe,
        "+20 % examples at": fifth_in_words(scaling),
        "Useful until": "" if useful is None or scaling.still_falls else in_words(useful),
        "B_crit": _critical(scaling),
    }


def _critical(scaling: Scaling) -> str:
    """B_crit. Without an S_min, nothing bounds it, and its value only says how far it was looked
    for."""
    critical = scaling.critical_batch_size
    if critical is None:
        return ""
    return in_words(critical if scaling.steps_min else replace(critical, value=math.inf))


def sentence(scaling: Scaling) -> str:
    """All on one curve: headline, whether steps are medians, what is known of its bend."""
    parts = [headline(scaling)]
    if scaling.curves is not None:
        parts += [
            "Steps are " + ("medians of repeats." if scaling.of_medians else "minima over trials."),
            *remarks_of(scaling),
        ]
    if scaling.left_out:
        parts.append(f"Left out: {'; '.join(scaling.left_out)}.")
    return " ".join(parts)


def remarks_of(scaling: Scaling) -> list[str]:
    said = []
    if scaling.critical_by_examples_is == "at most":
        said.append(
            f"Batch sizes below the smallest {_tested(scaling)} may take fewer examples, so test "
            f"smaller ones."
        )
    if scaling.verdict == BENDS:
        said.append(f"{capital(BENDS)}.")
    said += [f"{capital(scaling.at_end)}."] * bool(scaling.at_end)
    if scaling.exponent is not None:
        refused = scaling.critical_batch_size is None
        law = "so it has no B_crit" if refused else "1 is the law S_min (1 + B_crit / B)"
        said.append(f"The exponent of the bend is {exponent_in_words(scaling.exponent)}; {law}.")
    return said


def compared_in_words(ratio: Estimate) -> str:
    return factor_in_words(ratio) + ", not decided" * ratio.holds(1)


def exponent_in_words(exponent: Estimate) -> str:
    """An exponent and its interval; "over 20", as such ones can't be told apart. No smaller ones
    than the softest are tried, so an interval that goes down to it has no lower end."""
    value, low, high = (
        "over 20" if end > 20 else f"{end:.2g}" for end in (exponent.value, *exponent.ends)
    )
    if low == "over 20":
        return low
    if exponent.ends[0] * SOFTNESS[-1] <= 1:
        return f"{value} ({'not bounded' if high == 'over 20' else f'{high} or less'})"
    return f"{value} ({low} or more)" if high == "over 20" else f"{value} ({low} to {high})"


def errors_in_words(scaling: Scaling) -> str:
    """Says which errors the intervals of a curve are made from, and what two thirds of the trials
    would have found; empty if nothing was fitted."""
    parts = scaling.contributions
    if parts is None:
        return ""
    named = {
        "few trials": parts.few_trials,
        "seeds": parts.seeds,
        "resolution": parts.resolution,
        "other scatter": parts.scatter,
    }
    said = [
        f"{name} {100 * (2**part - 1):.1f} %" for name, part in named.items() if part is not None
    ]
    whole = f"Errors of the points, one standard deviation: {', '.join(said)} of their steps."
    if scaling.by_part is None:
        return (
            f"{whole} The error from the small number of trials is not known (where nothing is "
            f"searched, the answer is that of one point). It takes {FEWEST_TRIALS} points of a "
            f"design at each batch size, and repeats of three (`repeats: {{count: 10, of: 5}}`)."
        )
    more = 100 * (2**scaling.by_part - 1)
    return f"{whole} Two thirds of the trials would need {more:.1f} % more steps."


def verdict_in_words(verdict: Verdict) -> str:
    """Says how large the batch may be at one point, and the learning rate of the largest measured
    factor that costs at most a fifth more examples."""
    if not verdict.is_known:
        return f"After {verdict.at_examples:,} examples: not known, since {verdict.unknown}."
    limit = verdict.fifth_more
    best = [cost for cost in verdict.costs if cost.factor <= limit.value][-1]
    own = f" (x{verdict.costs[0].rate:.3g} at factor 1)" if best.factor > 1 else ""
    size = fifth_more_in_words(verdict)
    fifth = f"batch sizes up to {size} cost less than a fifth more examples"
    if math.isfinite(limit.value):
        fifth = f"batch size {size} costs a fifth more examples"
    said = [fifth, f"learning rate x{best.rate:.3g} at factor {best.factor}{own}"]
    if verdict.critical is not None:
        said.insert(1, f"local critical batch size {critical_in_words(verdict)}")
    if cheaper := [str(cost.factor) for cost in verdict.costs if cost.is_cheaper]:
        takes = "factors {} take" if len(cheaper) > 1 else "factor {} takes"
        said.append(f"{takes.format(listed(cheaper))} fewer examples than factor 1")
    if verdict.costs[0].not_tried:
        said.append("no other rate was tried at factor 1, so the others may cost more")
    if ends := [cost for cost in verdict.costs[1:] if cost.not_tried]:
        factors = listed([str(cost.factor) for cost in ends])
        said.append(
            f"no {ends[0].not_tried} rate was tried at factor {factors}, which may cost less"
        )
    return f"After {verdict.at_examples:,} examples: {'; '.join(said)}."


def confirmed_in_words(one: Confirmed) -> str:
    said = []
    for metric, difference in one.differences.items():
        low, high = difference.ends
        said.append(f"{metric} at the end {difference.value:+.3g} ({low:+.3g} to {high:+.3g})")
    failed = f" {one.failed} of the trainings with it failed or diverged." if one.failed else ""
    return (
        f"Confirmed, {one.recipe}: {one.steps:,} steps for {one.constant_steps:,}, "
        f"{one.steps_saved:.0%} fewer; {'; '.join(said)} ({one.seeds} seeds).{failed}"
    )


def fifth_more_in_words(verdict: Verdict) -> str:
    if not verdict.is_known:
        return "not known"
    if math.isfinite(verdict.fifth_more.value):
        return in_words(verdict.fifth_more_batch_size)
    return f"at least {_rounded(verdict.sure_batch_size)}"


def critical_in_words(verdict: Verdict) -> str:
    critical = verdict.critical
    if critical is None:
        return "not known"
    if critical.low == math.inf:
        return "beyond measure"
    if critical.value < 1:
        return f"at most {_rounded(max(critical.ends[1], 1))}"
    return in_words(critical)


def schedules_in_words(
    schedules: Mapping[str, Mapping[str, Any]], total_examples: int
) -> list[str]:
    """What each schedule saves, and from how many examples on its batch sizes hold."""
    return [
        f"{name.capitalize()} schedule, {schedule['steps_saved']:.0%} fewer steps for "
        f"{total_examples:,} examples: {schedule['samples']}"
        for name, schedule in schedules.items()
    ]


def in_words(estimate: Estimate, said: Callable[[float], str] | None = None) -> str:
    """Says the value, and its interval if it has one. An infinite value only says what it is
    larger than. `said` is how a number is said, by default with three digits."""
    said = said or _rounded
    if math.isinf(estimate.value):
        least = estimate.low or 0
        return f"at least {said(least)}" if 0 < least < math.inf else "not known"
    value = said(estimate.value)
    if estimate.low is None or estimate.high is None:
        return value
    low, high = said(estimate.low), estimate.high
    if not math.isfinite(high):
        return f"{value} ({low} or more)" if estimate.low else f"{value} (not bounded)"
    return value if low == said(high) == value else f"{value} ({low} to {said(high)})"


def factor_in_words(ratio: Estimate) -> str:
    """A ratio and its interval with two digits, or three where two don't tell it from 1."""

    def said(end: float) -> str:
        text = f"{end:.2g}" if end < 99.5 else f"{end:,.0f}"
        return f"{end:.3g}" if text == "1" else text

    return in_words(ratio, said)


def _rounded(value: float) -> str:
    """Rounds to three digits, except powers of two, which are exact batch sizes."""
    if value < 1:
        return f"{value:.2g}"
    digits = max(2 - math.floor(math.log10(value)), -9)
    exact = value == round(value) and math.log2(value) % 1 == 0
    return f"{value if exact else round(value, min(digits, 0)):,.0f}"


def in_count(steps: float) -> str:
    """Formats steps or examples; a median may lie halfway between two whole numbers."""
    return f"{steps:,.0f}" if steps == round(steps) else f"{steps:,.1f}"


def batch_sizes_of(row: FrontierRow | Study) -> str:
    """Says the batch size of a study, or its first and last batch size if it grows."""
    if row.batch_schedule is None or row.batch_schedule.first == row.batch_size:
        return f"{row.batch_size:,}"
    return f"{row.batch_schedule.first:,} to {row.batch_size:,}"


def cooled_sentences(rows: Iterable[FrontierRow]) -> list[str]:
    """A sentence on the recipes whose steps are those of trainings that are cooled down."""
    cooled = grouped((row for row in rows if row.cooldown), lambda row: str(row.cooldown))
    return [
        f"{listed([*dict.fromkeys(row.recipe for row in some)])}: steps of trainings whose "
        f"learning rate comes down ({how})."
        for how, some in cooled.items()
    ]


def growing_sentence(row: FrontierRow) -> str:
    said = f"{row.recipe}, batch size {batch_sizes_of(row)}: {steps_of(row)}"
    if row.steps is None or row.examples is None or row.censored:
        return f"{said}."
    again = f", in the median of repeats {median_of(row)}" if row.repeats else ""
    return f"{said} steps, {row.examples:,} examples{again}."


def steps_of(row: FrontierRow) -> str:
    if row.censored:
        return "censored"
    if row.steps is not None:
        return f"{row.steps:,}"
    return "not reached" if row.finished else "not yet"


def median_of(row: FrontierRow) -> str:
    again = row.repeats
    if again is None:
        return ""
    low, high = ("never" if end is None else f"{end:,}" for end in (again.low, again.high))
    ends = f" ({low} to {high})" if again.low is not None and again.count > 1 else ""
    if again.median is None:
        return ("not reached" if row.finished else "not yet") + ends
    return in_count(again.median) + ends


def frontier_cells(row: FrontierRow) -> dict[str, str]:
    resolution, examples = (None, None) if row.censored else (row.resolution, row.examples)
    return {
        "Recipe": row.recipe,
        "Batch size": batch_sizes_of(row),
        "Steps": steps_of(row),
        "±": "" if resolution is None else f"{resolution:,}",
        "Median": median_of(row),
        "Examples": "" if examples is None else f"{examples:,}",
        "Trial": "" if row.trial is None else str(row.answering[0]),
    }


def on_medians(rows: Iterable[FrontierRow]) -> str:
    """How many repeats medians are of, and the confidence of their intervals."""
    found = [row.repeats for row in rows if row.repeats is not None]
    if not found:
        return ""
    counts = [again.count for again in found]
    shares = [again.confidence for again in found if again.count > 1]
    said = f"Medians are of {ends_of(counts)} repeat{'s' * (max(counts) > 1)}"
    if not shares:
        return f"{said}, which has no interval."
    return f"{said}, in brackets their {ends_of(shares, '.0%')} intervals."


def remarks_on(rows: Sequence[FrontierRow]) -> Iterator[str]:
    """What a reader of the steps of each study should know."""
    workloads, asked = len({row.workload for row in rows}), len({row.goal for row in rows})
    for row in rows:
        if remarks := row.remarks():
            where = f"{row.workload}, " * (workloads > 1) + f"{row.goal}, " * (asked > 1)
            yield f"{where}{row.recipe} at {row.batch_size:,}: {'; '.join(remarks)}"


def ends_of(values: Collection[float], form: str = ",") -> str:
    """Says the least and the most of some numbers, or the one that all of them are."""
    return " to ".join(dict.fromkeys(format(end, form) for end in (min(values), max(values))))


def listed(names: Sequence[str], most: int | None = None) -> str:
    """Says "a, b and c", or "a, b and 2 more" if these are more than `most`."""
    if most is not None and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def capital(text: str) -> str:
    """The text with a capital at its beginning, and the rest as it is."""
    return text[:1].upper() + text[1:]


def in_digits(value: float) -> str:
    """Three digits of a number, or from 100 on all before its decimal point."""
    return f"{value:,.0f}" if 100 <= value < 1e9 else f"{value:.3g}"


def in_time(seconds: float) -> str:
    """Formats a duration in the unit that suits its length."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{in_digits(seconds / length)} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"
