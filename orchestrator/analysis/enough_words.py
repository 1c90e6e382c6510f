"""Sentences on whether there were enough trials."""

from __future__ import annotations

from orchestrator.analysis.enough import MANY_TRIALS, BestOf, Contributions
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.scaling import Scaling
from orchestrator.analysis.words import in_words


def enough_in_words(scaling: Scaling) -> str:
    """Says what more trials would change in one curve, or why that is not known."""
    if scaling.contributions is None:
        return ""
    if scaling.quality_unknown:
        return f"It is not known whether there were enough trials: {scaling.quality_unknown}."
    return " ".join(filter(None, (_more_trials(scaling), _equal_quality(scaling))))


def _more_trials(scaling: Scaling) -> str:
    """Says how many fewer steps more trials would find, at the batch sizes with the largest and the
    smallest gain."""
    gains = [(ratio, best) for best in scaling.best_of if (ratio := _of_more(best)) is not None]
    if not gains:
        return ""
    gains.sort(key=lambda gain: gain[0].value)
    (ratio, most), (other, least) = gains[0], gains[-1]
    said = (
        f"With {_more(most)} trials instead of {most.trials}, batch size {most.batch_size:,} would "
        f"need about {_fewer(ratio)}"
    )
    if least is not most:
        said += f", batch size {least.batch_size:,} about {_fewer(other)}"
    return f"{said}."


def _more(best: BestOf) -> int:
    counts = [count for count, _ in best.beyond]
    return MANY_TRIALS if MANY_TRIALS in counts else counts[0]


def _of_more(best: BestOf) -> Estimate | None:
    return dict(best.beyond)[_more(best)] if best.beyond else None


def _fewer(ratio: Estimate) -> str:
    """Says the gain. More trials can't need more steps, so the gain is never below 0."""
    assert ratio.low is not None
    assert ratio.high is not None
    value, least, most = (max(1 - end, 0) for end in (ratio.value, ratio.high, ratio.low))
    return f"{value:.0%} fewer steps ({least:.0%} to {most:.0%})"


def _equal_quality(scaling: Scaling) -> str:
    equal, critical = scaling.equal_quality, scaling.critical_batch_size
    if equal is None or critical is None:
        return ""
    left_out = ", ".join(f"{size:,}" for size in equal.left_out)
    without = f" (without batch size {left_out}, where too few trials are known)"
    return (
        f"At equal quality of tuning, B_crit is {in_words(equal.critical_batch_size)} instead of "
        f"{in_words(critical)}{without * bool(left_out)}."
    )


def contributions_in_words(parts: Contributions) -> str:
    """Says which errors the intervals of a curve are made from."""
    named = {
        "few trials": parts.few_trials,
        "seeds": parts.seeds,
        "resolution": parts.resolution,
        "other scatter": parts.scatter,
    }
    said = [
        f"{name} {100 * (2**part - 1):.1f} %" for name, part in named.items() if part is not None
    ]
    return f"Errors of the points, one standard deviation: {', '.join(said)} of their steps."
