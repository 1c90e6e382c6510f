"""Claims of the papers, each with a rule that decides from measured runs whether it holds here.

Each function below is one claim. Its docstring says what the paper claims and how we decide: that
text and the rule were committed before the runs were measured. A rule looks at 90 % intervals. It
says *agrees* or *disagrees* only if a whole interval lies on one side, otherwise *undecided*.

How far the batch size scales is compared by one number: the batch size that needs a fifth more
examples than the fewest (`Scaling.critical_by_examples`). It exists for every law of the curve.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

import orchestrator
from orchestrator.analysis import Scaling, points_of, scalings, tuned
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.forecasts import forecast_ratio, together
from orchestrator.analysis.points import Point
from orchestrator.analysis.tuned import EFFECTIVE
from orchestrator.results import FrontierRow
from orchestrator.results import Run as Files

HERE = Path(__file__).parent
RUNS = HERE / "runs"

DIGITS, CNN = "digits/mlp", "digits/cnn"
FASHION = "fashion_mnist/fc_64_64_64"
MIDDLE = {
    DIGITS: "val/error < 0.04",
    CNN: "val/error < 0.03",
    FASHION: "val/error < 0.17",
}
"""The middle goal of each workload, which all claims are about that name no other."""

GROUPS = {DIGITS: "digits_mlp", CNN: "digits_cnn", FASHION: "fashion_mnist"}

Answer = Literal["agrees", "disagrees", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One of the numbers that a claim is decided by."""

    name: str
    estimate: Estimate


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was measured of a claim."""

    title: str
    source: str
    groups: tuple[str, ...]
    measured: str
    """In a sentence."""
    cells: tuple[Cell, ...]
    answer: Answer


def regimes() -> Finding:
    """Steps fall in inverse proportion to the batch size at first, then less and less, and at last
    not at all (Shallue et al.).

    A curve shows all three if scaling is perfect until at least twice the smallest batch size and a
    larger batch is no longer useful before the largest batch size measured. The claim agrees if at
    least three quarters of the curves do that have these numbers, and disagrees if fewer than half
    do. The curves are those of SGD, momentum and Nesterov on the three workloads of real data.
    """
    shown, known = [], []
    for workload in GROUPS:
        sizes = [row.batch_size for row in _rows(workload)]
        for recipe in ("sgd", "momentum", "nesterov"):
            curve = _curve(workload, recipe)
            perfect, useful = curve.perfect_scaling_until, curve.max_useful_batch_size
            if perfect is None or useful is None:
                continue
            known.append(Cell(name=f"{workload}, {recipe}: useful until", estimate=useful))
            shown.append(perfect.value >= 2 * min(sizes) and useful.value < max(sizes))
    share = sum(shown) / len(shown)
    return Finding(
        title="Three regimes",
        source="Shallue et al.",
        groups=tuple(GROUPS.values()),
        measured=f"{sum(shown)} of {len(shown)} curves show all three regimes.",
        cells=tuple(known),
        answer="agrees" if share >= 0.75 else "disagrees" if share < 0.5 else "undecided",
    )


def workloads_differ() -> Finding:
    """How far the batch size scales differs enormously between workloads (Shallue et al.).

    We divide the largest by the smallest batch size that needs a fifth more examples, of momentum
    on the three workloads of real data. The claim agrees if this ratio is above 4.
    """
    found = [(workload, _fifth_more(workload, "momentum")) for workload in GROUPS]
    known = sorted(
        ((name, one) for name, one in found if one is not None), key=lambda each: each[1].value
    )
    ratio = _ratio(known[-1][1], known[0][1])
    return _decided(
        title="Workloads differ",
        source="Shallue et al.",
        groups=GROUPS.values(),
        measured=f"{known[-1][0]} scales {_said(ratio)} times as far as {known[0][0]}.",
        cells=[Cell(name=name, estimate=one) for name, one in known],
        estimate=ratio,
        side="above",
        bound=4,
    )


def momentum_extends() -> Finding:
    """Momentum and Nesterov momentum keep scaling perfect to larger batch sizes than plain SGD
    (Shallue et al.).

    For momentum and for Nesterov on each of the three workloads of real data, we divide the batch
    size that needs a fifth more examples by that of SGD. The claim agrees if the geometric mean of
    the ratios is above 1.
    """
    return _recipes_compared(
        title="Momentum extends perfect scaling",
        source="Shallue et al.",
        pairs=[(w, r, "sgd") for w in GROUPS for r in ("momentum", "nesterov")],
        what="The batch size that needs a fifth more examples is {} times that of SGD.",
    )


def momentum_equal_at_first() -> Finding:
    """At small batch sizes, momentum needs as many steps as plain SGD (Shallue et al.).

    We divide the steps of momentum and Nesterov by those of SGD at the smallest batch size, on the
    three workloads of real data. The claim agrees if the geometric mean lies between 0.8 and 1.25
    with its whole interval, and disagrees if the whole interval lies outside.
    """
    cells = []
    for workload in GROUPS:
        first = min(row.batch_size for row in _rows(workload))
        sgd = _steps(workload, "sgd", first)
        for recipe in ("momentum", "nesterov"):
            other = _steps(workload, recipe, first)
            if sgd is not None and other is not None:
                name = f"{workload}, {recipe}, batch size {first}"
                cells.append(Cell(name=name, estimate=_ratio(other, sgd)))
    mean = _mean(cells)
    return Finding(
        title="Momentum gains nothing at small batch sizes",
        source="Shallue et al.",
        groups=tuple(GROUPS.values()),
        measured=f"Momentum needs {_said(mean)} times the steps of SGD at the smallest batch size.",
        cells=tuple(cells),
        answer=_within(mean, 0.8, 1.25),
    )


def preconditioning_extends() -> Finding:
    """Preconditioned optimizers scale to larger batch sizes than momentum (Zhang et al. of K-FAC;
    here SOAP, Muon and AdamW).

    We divide the batch size that needs a fifth more examples by that of momentum, on the digits.
    The claim agrees if the geometric mean of the three ratios is above 1.
    """
    return _recipes_compared(
        title="Preconditioning extends perfect scaling",
        source="Zhang et al.",
        pairs=[(DIGITS, recipe, "momentum") for recipe in ("soap", "muon", "adamw")],
        what="The batch size that needs a fifth more examples is {} times that of momentum.",
    )


def layerwise_at_full_batch() -> Finding:
    """With layer-wise rates (LARS), the full batch needs fewer steps than with momentum (You et
    al.).

    We divide the steps of LARS by those of momentum at the full batch of the digits, both at the
    middle goal. The claim agrees if the ratio is below 1.
    """
    full = max(row.batch_size for row in _rows(DIGITS))
    lars, momentum = _steps(DIGITS, "lars", full), _steps(DIGITS, "momentum", full)
    if lars is None or momentum is None:
        raise SystemExit("LARS or momentum has no steps at the full batch")
    ratio = _ratio(lars, momentum)
    return _decided(
        title="Layer-wise rates at the full batch",
        source="You et al.",
        groups=["digits_mlp"],
        measured=f"LARS needs {_said(ratio)} times the steps of momentum.",
        cells=[
            Cell(name="lars, steps", estimate=lars),
            Cell(name="momentum, steps", estimate=momentum),
        ],
        estimate=ratio,
        side="below",
        bound=1,
    )


def no_rule_holds() -> Finding:
    """No rule for learning rates (linear, square root, constant) holds across workloads and batch
    sizes (Shallue et al., Golmant et al.).

    Each rule starts from the best rate that was tuned at one batch size (16 on the digits, 32 on
    Fashion-MNIST; momentum 0.9). We divide its steps at every other batch size by the tuned ones.
    A rule fails at a batch size if this ratio is above 1.25, or if most repeats never reach the
    goal. The claim agrees if each rule fails somewhere, and disagrees if some rule is below 1.25
    everywhere.
    """
    cells, failing, holding = [], set(), set()
    for rule in ("linear", "sqrt", "constant"):
        ratios = []
        for group, base in (("rules_digits", 16), ("rules_fashion", 32)):
            points = _points_by(group)
            for size in sorted({size for _, size in points} - {base}):
                tuned_point = points["tuned", size]
                if tuned_point is None:
                    continue
                point = points[rule, size]
                ratio = (
                    Estimate(value=math.inf, low=math.inf, high=math.inf)
                    if point is None
                    else _ratio(_of_point(point), _of_point(tuned_point))
                )
                ratios.append(ratio)
                cells.append(Cell(name=f"{group}, {rule}, batch size {size}", estimate=ratio))
        if any(_low(ratio) > 1.25 for ratio in ratios):
            failing.add(rule)
        if all(_high(ratio) < 1.25 for ratio in ratios):
            holding.add(rule)
    return Finding(
        title="No learning-rate rule holds",
        source="Shallue et al., Golmant et al.",
        groups=("rules_digits", "rules_fashion"),
        measured=f"{len(failing)} of 3 rules fail at some batch size"
        + (f": {', '.join(sorted(failing))}." if failing else "."),
        cells=tuple(cells),
        answer="agrees" if len(failing) == 3 else "disagrees" if holding else "undecided",
    )


def effective_rate() -> Finding:
    """The best effective learning rate, learning rate / (1 - momentum), follows neither the linear
    nor the square root rule (Shallue et al.).

    For SGD, momentum and Nesterov on the three workloads of real data, we fit the power of the
    batch size that the effective rates of the best trials follow. The claim agrees if the interval
    of one curve excludes 1 and the interval of one curve excludes 0.5. It disagrees if all
    intervals hold 1, or all hold 0.5, and their mean half-width is below 0.25.
    """
    cells = []
    for workload, group in GROUPS.items():
        for found in tuned(_frontier(group)):
            rate = "learning_rate" if found.recipe == "sgd" else EFFECTIVE
            if (
                found.goal == MIDDLE[workload]
                and found.recipe in ("sgd", "momentum", "nesterov")
                and found.name == rate
                and found.exponent is not None
                and found.exponent_interval is not None
            ):
                low, high = found.exponent_interval
                estimate = Estimate(value=found.exponent, low=low, high=high)
                cells.append(Cell(name=f"{workload}, {found.recipe}: power", estimate=estimate))
    excludes = {
        rule: [not _low(c.estimate) <= rule <= _high(c.estimate) for c in cells]
        for rule in (1, 0.5)
    }
    width = float(np.mean([(_high(c.estimate) - _low(c.estimate)) / 2 for c in cells]))
    answer: Answer = "undecided"
    if any(excludes[1]) and any(excludes[0.5]):
        answer = "agrees"
    elif width < 0.25 and not (any(excludes[1]) and any(excludes[0.5])):
        answer = "disagrees"
    return Finding(
        title="Effective learning rates follow no rule",
        source="Shallue et al.",
        groups=tuple(GROUPS.values()),
        measured=f"Of {len(cells)} curves, {sum(excludes[1])} exclude the linear rule and "
        f"{sum(excludes[0.5])} the square root rule.",
        cells=tuple(cells),
        answer=answer,
    )


def data_set_size() -> Finding:
    """How far the batch size scales depends little on the size of the data set (Shallue et al.,
    Golmant et al.).

    The same network is trained on four sizes of subsets of Fashion-MNIST, to the middle goal. We
    fit the power of the number of training examples that the batch size with a fifth more examples
    follows. The claim agrees if the power is below 0.5, and disagrees if it is above.
    """
    goal = "val/error < 0.21"
    found = []
    for scaling in _scalings("subsets"):
        size = _known(scaling.critical_by_examples)
        if scaling.goal == goal and size is not None:
            _, _, options = scaling.workload.partition("train_examples=")
            found.append((int(options or 55_000), size))
    sizes = np.log2([size for size, _ in found])
    logs = np.log2([one.value for _, one in found])
    reach = np.array([_reach(one) for _, one in found])
    weights = 1 / reach**2
    middle = (weights * sizes).sum() / weights.sum()
    spread = (weights * (sizes - middle) ** 2).sum()
    power = float((weights * (sizes - middle) * logs).sum() / spread)
    half = float(spread**-0.5)
    estimate = Estimate(value=power, low=power - half, high=power + half)
    return _decided(
        title="The size of the data set",
        source="Shallue et al., Golmant et al.",
        groups=["subsets"],
        measured=f"It grows like the number of examples to the power {_said(estimate)}.",
        cells=[Cell(name=f"{size:,} examples", estimate=one) for size, one in found],
        estimate=estimate,
        side="below",
        bound=0.5,
    )


def noise_scale_foretells() -> Finding:
    """The gradient noise scale foretells the critical batch size (McCandlish et al.).

    We divide the forecast of each curve by its measured B_crit, for SGD and momentum on the three
    workloads of real data. The claim agrees if the geometric mean lies between 1/3 and 3 with its
    whole interval, and disagrees if the whole interval lies outside.
    """
    cells = []
    for workload, group in GROUPS.items():
        for compared in orchestrator.open_run(RUNS / group).forecasts(MIDDLE[workload]):
            if compared.recipe in ("sgd", "momentum") and compared.ratio is not None:
                name = f"{workload}, {compared.recipe}: forecast / measured"
                cells.append(Cell(name=name, estimate=compared.ratio))
    mean = _mean(cells)
    return Finding(
        title="The noise scale foretells B_crit",
        source="McCandlish et al.",
        groups=tuple(GROUPS.values()),
        measured=f"Forecasts are {_said(mean)} times the measured B_crit.",
        cells=tuple(cells),
        answer=_within(mean, 1 / 3, 3),
    )


def stricter_goals() -> Finding:
    """The critical batch size grows as training proceeds, so that a stricter goal allows a larger
    batch (McCandlish et al.).

    For SGD, momentum and Nesterov on the three workloads of real data, we divide the batch size
    that needs a fifth more examples at the strictest of three goals by that at the loosest. The
    claim agrees if the geometric mean is above 1.
    """
    cells = []
    for workload, group in GROUPS.items():
        for recipe in ("sgd", "momentum", "nesterov"):
            by_goal = {
                float(scaling.goal.rpartition("<")[2]): _known(scaling.critical_by_examples)
                for scaling in _scalings(group)
                if scaling.recipe == recipe
            }
            strict, loose = by_goal[min(by_goal)], by_goal[max(by_goal)]
            if strict is not None and loose is not None:
                name = f"{workload}, {recipe}: strictest / loosest"
                cells.append(Cell(name=name, estimate=_ratio(strict, loose)))
    mean = _mean(cells)
    return _decided(
        title="Stricter goals allow larger batches",
        source="McCandlish et al.",
        groups=GROUPS.values(),
        measured=f"From the loosest to the strictest goal it grows {_said(mean)} times.",
        cells=cells,
        estimate=mean,
        side="above",
        bound=1,
    )


def published_panel() -> Finding:
    """Simple CNN trained with Nesterov momentum reaches 10 % validation error on Fashion-MNIST in
    the published number of steps (Shallue et al., their first figure).

    We divide our steps by the published ones at every batch size that we measured. The claim
    agrees if all ratios lie between 0.5 and 2, and disagrees if one lies outside by more than the
    10 % to which the figure can be read.
    """
    with open(HERE / "published_panel.csv", encoding="utf-8") as file:
        published = {int(line["batch_size"]): float(line["steps"]) for line in csv.DictReader(file)}
    points = {size: point for (_, size), point in _points_by("simple_cnn").items()}
    cells = []
    for size, point in sorted(points.items()):
        if point is not None and size in published:
            read = Estimate(
                value=published[size], low=published[size] / 1.1, high=published[size] * 1.1
            )
            name = f"batch size {size:,}: steps / published"
            cells.append(Cell(name=name, estimate=_ratio(_of_point(point), read)))
    inside = [0.5 <= cell.estimate.value <= 2 for cell in cells]
    outside = [_high(cell.estimate) < 0.5 or _low(cell.estimate) > 2 for cell in cells]
    return Finding(
        title="The published panel",
        source="Shallue et al.",
        groups=("simple_cnn",),
        measured=f"{sum(inside)} of {len(inside)} batch sizes are within a factor of two.",
        cells=tuple(cells),
        answer="agrees" if all(inside) else "disagrees" if any(outside) else "undecided",
    )


def noisy_quadratic() -> Finding:
    """The noisy quadratic model foretells how steps fall with the batch size (Zhang et al.): here,
    its closed recursion against our trainings of it.

    At every batch size, we divide the steps that SGD took by the fewest that the recursion of the
    expected risk allows, over all learning rates. The claim agrees if all ratios lie between 0.9
    and 1.15, and disagrees if an interval lies outside.
    """
    points = {
        size: point
        for (recipe, size), point in _points_by("noisy_quadratic", "val/loss < 0.01").items()
        if recipe == "sgd"
    }
    cells = []
    for size, point in sorted(points.items()):
        if point is not None:
            exact = Estimate(value=_fewest_steps(size, goal=0.01, dimensions=1000))
            name = f"batch size {size:,}: steps / fewest"
            cells.append(Cell(name=name, estimate=_ratio(_of_point(point), exact)))
    inside = [0.9 <= cell.estimate.value <= 1.15 for cell in cells]
    outside = [_high(cell.estimate) < 0.9 or _low(cell.estimate) > 1.15 for cell in cells]
    return Finding(
        title="The noisy quadratic model",
        source="Zhang et al.",
        groups=("noisy_quadratic",),
        measured=f"{sum(inside)} of {len(inside)} batch sizes need the fewest steps that the "
        f"recursion allows, within 10 to 15 %.",
        cells=tuple(cells),
        answer="agrees" if all(inside) else "disagrees" if any(outside) else "undecided",
    )


def no_loss_of_quality() -> Finding:
    """Large batches do not train to a worse error if metaparameters are tuned (Shallue et al.; You
    et al. find that huge batches do).

    All batch sizes of the digits get the same number of steps with momentum, and no trial stops at
    a goal. The point that reached an error of 2.5 % first is trained again with ten other seeds. We
    take the lowest validation error of each repeat, and subtract the mean at batch size 32 from the
    mean at the full batch (Welch's interval). The claim agrees if the difference is below 0.01,
    and disagrees if it is above 0, each with the whole interval.
    """
    errors = _best_errors()
    small, full = errors[32], errors[max(errors)]
    found = stats.ttest_ind(full, small, equal_var=False).confidence_interval(0.9)
    difference = Estimate(value=full.mean() - small.mean(), low=found.low, high=found.high)
    return Finding(
        title="Quality at large batch sizes",
        source="Shallue et al., You et al.",
        groups=("quality",),
        measured=f"The full batch comes to an error of {full.mean():.2%} and batch size 32 to "
        f"{small.mean():.2%}, in the mean of repeats.",
        cells=(Cell(name="full batch - batch size 32", estimate=difference),),
        answer="agrees"
        if _high(difference) < 0.01
        else "disagrees"
        if _low(difference) > 0
        else "undecided",
    )


CLAIMS: tuple[Callable[[], Finding], ...] = (
    regimes,
    workloads_differ,
    momentum_extends,
    momentum_equal_at_first,
    preconditioning_extends,
    layerwise_at_full_batch,
    no_rule_holds,
    effective_rate,
    data_set_size,
    noise_scale_foretells,
    stricter_goals,
    published_panel,
    noisy_quadratic,
    no_loss_of_quality,
)


@cache
def _frontier(group: str) -> tuple[FrontierRow, ...]:
    return tuple(orchestrator.open_run(RUNS / group).frontier())


@cache
def _scalings(group: str) -> tuple[Scaling, ...]:
    return tuple(scalings(_frontier(group)))


def _rows(workload: str) -> list[FrontierRow]:
    return [row for row in _frontier(GROUPS[workload]) if row.goal == MIDDLE[workload]]


def _curve(workload: str, recipe: str) -> Scaling:
    (found,) = (
        scaling
        for scaling in _scalings(GROUPS[workload])
        if (scaling.recipe, scaling.goal) == (recipe, MIDDLE[workload])
    )
    return found


def _fifth_more(workload: str, recipe: str) -> Estimate | None:
    return _known(_curve(workload, recipe).critical_by_examples)


def _known(estimate: Estimate | None) -> Estimate | None:
    """The estimate if its value is a number; a curve that never bends has an infinite one."""
    return estimate if estimate is not None and math.isfinite(estimate.value) else None


def _points_by(group: str, goal: str | None = None) -> dict[tuple[str, int], Point | None]:
    """Maps (recipe, batch size) to the point of each study, which is None if it has no answer."""
    rows = [row for row in _frontier(group) if goal in (None, row.goal)]
    points = {(point.recipe, point.batch_size): point for point in points_of(rows)}
    return {key: points.get(key) for key in ((row.recipe, row.batch_size) for row in rows)}


def _steps(workload: str, recipe: str, size: int) -> Estimate | None:
    point = _points_by(GROUPS[workload], MIDDLE[workload])[recipe, size]
    return None if point is None else _of_point(point)


def _of_point(point: Point) -> Estimate:
    """The steps with an interval. The goal was passed after the measurement before."""
    low = point.steps if point.low is None else point.low
    high = math.inf if point.high is None and point.is_median else point.high or point.steps
    return Estimate(value=point.steps, low=max(low - point.resolution, 0.5), high=high)


def _ratio(first: Estimate, second: Estimate) -> Estimate:
    ratio = forecast_ratio(first, second)
    if ratio is None:
        raise ValueError(f"{first} and {second} have no ratio")
    return ratio


def _low(estimate: Estimate) -> float:
    return estimate.value if estimate.low is None else estimate.low


def _high(estimate: Estimate) -> float:
    return estimate.value if estimate.high is None else estimate.high


def _reach(estimate: Estimate) -> float:
    """Half the width of an interval, in doublings; that of the lower half if nothing bounds it
    above."""
    low, high = _low(estimate), _high(estimate)
    if math.isinf(high):
        return math.log2(estimate.value / low)
    return math.log2(high / low) / 2


def _mean(cells: Sequence[Cell]) -> Estimate:
    return together([cell.estimate for cell in cells])


def _within(estimate: Estimate, low: float, high: float) -> Answer:
    if low < _low(estimate) and _high(estimate) < high:
        return "agrees"
    return "disagrees" if _high(estimate) < low or _low(estimate) > high else "undecided"


def _decided(
    *,
    title: str,
    source: str,
    groups: Iterable[str],
    measured: str,
    cells: Sequence[Cell],
    estimate: Estimate,
    side: Literal["above", "below"],
    bound: float,
) -> Finding:
    """A finding that agrees if the whole interval lies above, or below, a bound, and disagrees if
    it lies on the other side."""
    is_above, is_below = _low(estimate) > bound, _high(estimate) < bound
    agrees, disagrees = (is_above, is_below) if side == "above" else (is_below, is_above)
    return Finding(
        title=title,
        source=source,
        groups=tuple(groups),
        measured=measured,
        cells=tuple(cells),
        answer="agrees" if agrees else "disagrees" if disagrees else "undecided",
    )


def _recipes_compared(
    *, title: str, source: str, pairs: Sequence[tuple[str, str, str]], what: str
) -> Finding:
    """Whether one recipe scales further than another, over (workload, recipe, other recipe)."""
    cells = []
    for workload, recipe, other in pairs:
        first, second = _fifth_more(workload, recipe), _fifth_more(workload, other)
        if first is not None and second is not None:
            name = f"{workload}, {recipe} / {other}"
            cells.append(Cell(name=name, estimate=_ratio(first, second)))
    mean = _mean(cells)
    return _decided(
        title=title,
        source=source,
        groups=dict.fromkeys(GROUPS[workload] for workload, _, _ in pairs),
        measured=what.format(_said(mean)),
        cells=cells,
        estimate=mean,
        side="above",
        bound=1,
    )


def _said(estimate: Estimate) -> str:
    value, low, high = (f"{end:.2g}" for end in (estimate.value, _low(estimate), _high(estimate)))
    return f"{value} ({low} or more)" if high == "inf" else f"{value} ({low} to {high})"


def _fewest_steps(batch_size: int, goal: float, dimensions: int) -> float:
    """The fewest steps of SGD in which the expected risk of the noisy quadratic model falls below
    the goal, over all learning rates. With rate a, a coordinate of curvature h has
    E x^2 = s + (1 - s) (1 - a h)^(2 t) after t steps, where s = a^2 h / B / (1 - (1 - a h)^2)."""
    h = 1 / np.arange(1, dimensions + 1)

    def steps(log_rate: float) -> float:
        a = math.exp(log_rate)
        shrinks = (1 - a * h) ** 2
        rest = a * a * h / batch_size / (1 - shrinks)

        def risk(t: float) -> float:
            return float(0.5 * (h * (rest + (1 - rest) * shrinks**t)).sum()) - goal

        most = 1e7
        return most if risk(most) > 0 else optimize.brentq(risk, 0, most)

    rates = np.linspace(math.log(1e-4), math.log(1.99), 200)
    best = rates[int(np.argmin([steps(rate) for rate in rates]))]
    width = rates[1] - rates[0]
    found = optimize.minimize_scalar(steps, bounds=(best - width, min(best + width, rates[-1])))
    return min(float(found.fun), steps(best))


def _best_errors() -> dict[int, NDArray[np.float64]]:
    """Maps each batch size of the run `quality` to the lowest validation error of each repeat."""
    run = Files.open(RUNS / "quality")
    found = {}
    for study in run.studies():
        table = run.repeats.measurements(study.key, {"val/error"})
        lowest = table.group_by("trial").aggregate([("val/error", "min")])
        found[study.batch_size] = lowest["val/error_min"].to_numpy()
    return found
