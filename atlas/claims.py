"""Claims of the papers, each with a rule that decides from measured runs whether it holds here.

Each function below is one claim. Its docstring says what the paper claims and how we decide: that
text and the rule were committed before the runs were measured. A rule looks at 90 % intervals. It
says *agrees* or *disagrees* only if a whole interval lies on one side, otherwise *undecided*.

How far the batch size scales is compared by one number: the batch size that needs a fifth more
examples than the fewest (`Scaling.critical_by_examples`). It exists for every law of the curve.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Sequence

import numpy as np
from measured import (
    CNN,
    DIGITS,
    GROUPS,
    HERE,
    MIDDLE,
    best_errors,
    curve_of,
    fewest_steps,
    fifth_more,
    forecasts_of,
    frontier_of,
    known,
    of_point,
    points_by,
    rows_of,
    scalings_of,
    steps_of,
)
from picture import said
from rules import (
    REGISTERED,
    Answer,
    Cell,
    Claim,
    Measured,
    all_within,
    beyond,
    cell,
    claim,
    high_end,
    low_end,
    mean_of,
    reach_of,
    within,
)
from scipy import stats

from orchestrator.analysis import Estimate, tuned
from orchestrator.analysis.tuned import EFFECTIVE

DECAYED = "warmup-stable-decay"

NEVER = Estimate(value=math.inf, low=math.inf, high=math.inf)
"""The steps to a goal that most repeats never reach, over those of others that do."""


@claim(title="Three regimes", source="Shallue et al.", groups=GROUPS.values())
def regimes() -> Measured:
    """Steps fall in inverse proportion to the batch size at first, then less and less, and at last
    not at all (Shallue et al.).

    A curve shows all three if scaling is perfect until at least twice the smallest batch size, and
    the last doubling that was measured saves less than a tenth of the steps. The claim agrees if at
    least three quarters of the curves do that have these numbers, and disagrees if fewer than half
    do. The curves are those of SGD, momentum and Nesterov on the three workloads of real data.
    """
    shown, known = [], []
    for workload in GROUPS:
        sizes = [row.batch_size for row in rows_of(workload)]
        for recipe in ("sgd", "momentum", "nesterov"):
            curve = curve_of(workload, recipe)
            perfect, useful = curve.perfect_scaling_until, curve.max_useful_batch_size
            if perfect is None or useful is None:
                continue
            known.append(Cell(name=f"{workload}, {recipe}", estimate=useful))
            shown.append(perfect.value >= 2 * min(sizes) and useful.value <= max(sizes) / 2)
    share = sum(shown) / len(shown)
    return Measured(
        said=f"{sum(shown)} of {len(shown)} curves show all three regimes.",
        cells=known,
        axis="largest useful batch size",
        answer="agrees" if share >= 0.75 else "disagrees" if share < 0.5 else "undecided",
    )


@claim(title="Workloads differ", source="Shallue et al.", groups=GROUPS.values())
def workloads_differ() -> Measured:
    """How far the batch size scales differs enormously between workloads (Shallue et al.).

    We divide the largest by the smallest batch size that needs a fifth more examples, of momentum
    on the three workloads of real data. The claim agrees if this ratio is above 4.
    """
    found = [(workload, fifth_more(workload, "momentum")) for workload in GROUPS]
    known = sorted(
        ((name, one) for name, one in found if one is not None), key=lambda each: each[1].value
    )
    ratio = cell("largest / smallest", known[-1][1], known[0][1]).estimate
    return Measured(
        said=f"{known[-1][0]} scales {said(ratio)} times as far as {known[0][0]}.",
        cells=[Cell(name=name, estimate=one) for name, one in known],
        axis="batch size that needs a fifth more examples",
        answer=beyond(ratio, "above", 4),
    )


@claim(title="Momentum extends perfect scaling", source="Shallue et al.", groups=GROUPS.values())
def momentum_extends() -> Measured:
    """Momentum and Nesterov momentum keep scaling perfect to larger batch sizes than plain SGD
    (Shallue et al.).

    For momentum and for Nesterov on each of the three workloads of real data, we divide the batch
    size that needs a fifth more examples by that of SGD. The claim agrees if the geometric mean of
    the ratios is above 1.
    """
    return _compared(
        pairs=[(w, r, "sgd") for w in GROUPS for r in ("momentum", "nesterov")],
        what="The batch size that needs a fifth more examples is {} times that of SGD.",
    )


@claim(
    title="Momentum gains nothing at small batch sizes",
    source="Shallue et al.",
    groups=GROUPS.values(),
)
def momentum_equal_at_first() -> Measured:
    """At small batch sizes, momentum needs as many steps as plain SGD (Shallue et al.).

    We divide the steps of momentum and Nesterov by those of SGD at the smallest batch size, on the
    three workloads of real data. The claim agrees if the geometric mean lies between 0.8 and 1.25
    with its whole interval, and disagrees if the whole interval lies outside.
    """
    cells = []
    for workload in GROUPS:
        first = min(row.batch_size for row in rows_of(workload))
        sgd = steps_of(workload, "sgd", first)
        for recipe in ("momentum", "nesterov"):
            other = steps_of(workload, recipe, first)
            if sgd is not None and other is not None:
                name = f"{workload}, {recipe}, batch size {first}"
                cells.append(cell(name, other, sgd))
    mean = mean_of(cells)
    return Measured(
        said=f"Momentum needs {said(mean)} times the steps of SGD at the smallest batch size.",
        cells=cells,
        axis="steps / steps of SGD",
        bounds=(0.8, 1.25),
        answer=within(mean, 0.8, 1.25),
    )


@claim(
    title="Preconditioning extends perfect scaling", source="Zhang et al.", groups=["digits_mlp"]
)
def preconditioning_extends() -> Measured:
    """Preconditioned optimizers scale to larger batch sizes than momentum (Zhang et al. of K-FAC;
    here SOAP, Muon and AdamW).

    We divide the batch size that needs a fifth more examples by that of momentum, on the digits.
    The claim agrees if the geometric mean of the three ratios is above 1.
    """
    return _compared(
        pairs=[(DIGITS, recipe, "momentum") for recipe in ("soap", "muon", "adamw")],
        what="The batch size that needs a fifth more examples is {} times that of momentum.",
    )


@claim(title="Layer-wise rates at the full batch", source="You et al.", groups=["digits_mlp"])
def layerwise_at_full_batch() -> Measured:
    """With layer-wise rates (LARS), the full batch needs fewer steps than with momentum (You et
    al.).

    We divide the steps of LARS by those of momentum at the full batch of the digits, both at the
    middle goal. The claim agrees if the ratio is below 1.
    """
    full = max(row.batch_size for row in rows_of(DIGITS))
    lars, momentum = steps_of(DIGITS, "lars", full), steps_of(DIGITS, "momentum", full)
    if lars is None or momentum is None:
        return Measured(said="LARS or momentum never reaches the goal.", answer="undecided")
    ratio = cell("lars / momentum", lars, momentum).estimate
    return Measured(
        said=f"LARS needs {said(ratio)} times the steps of momentum.",
        cells=[
            Cell(name="lars, steps", estimate=lars),
            Cell(name="momentum, steps", estimate=momentum),
        ],
        axis="steps at the full batch",
        answer=beyond(ratio, "below", 1),
    )


@claim(
    title="No learning-rate rule holds",
    source="Shallue et al., Golmant et al.",
    groups=("rules_digits", "rules_fashion"),
)
def no_rule_holds() -> Measured:
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
            points = points_by(group)
            for size in sorted({size for _, size in points} - {base}):
                tuned_point = points["tuned", size]
                if tuned_point is None:
                    continue
                point = points[rule, size]
                name = f"{group}, {rule}, batch size {size}"
                if point is None:
                    ratios.append(Cell(name=name, estimate=NEVER))
                else:
                    ratios.append(cell(name, of_point(point), of_point(tuned_point)))
        cells += ratios
        if any(low_end(one.estimate) > 1.25 for one in ratios):
            failing.add(rule)
        if all(high_end(one.estimate) < 1.25 for one in ratios):
            holding.add(rule)
    return Measured(
        said=f"{len(failing)} of 3 rules fail at some batch size"
        + (f": {', '.join(sorted(failing))}." if failing else "."),
        cells=cells,
        axis="steps / tuned steps",
        bounds=(1.25,),
        answer="agrees" if len(failing) == 3 else "disagrees" if holding else "undecided",
    )


@claim(
    title="Effective learning rates follow no rule", source="Shallue et al.", groups=GROUPS.values()
)
def effective_rate() -> Measured:
    """The best effective learning rate, learning rate / (1 - momentum), follows neither the linear
    nor the square root rule (Shallue et al.).

    For SGD, momentum and Nesterov on the three workloads of real data, we fit the power of the
    batch size that the effective rates of the best trials follow. The claim agrees if the interval
    of one curve excludes 1 and the interval of one curve excludes 0.5. It disagrees if all
    intervals hold 1, or all hold 0.5, and their mean half-width is below 0.25.
    """
    cells = []
    for workload, group in GROUPS.items():
        for found in tuned(frontier_of(group)):
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
        rule: [not low_end(c.estimate) <= rule <= high_end(c.estimate) for c in cells]
        for rule in (1, 0.5)
    }
    width = float(np.mean([(high_end(c.estimate) - low_end(c.estimate)) / 2 for c in cells]))
    answer: Answer = "undecided"
    if any(excludes[1]) and any(excludes[0.5]):
        answer = "agrees"
    elif width < 0.25 and not (any(excludes[1]) and any(excludes[0.5])):
        answer = "disagrees"
    return Measured(
        said=f"Of {len(cells)} curves, {sum(excludes[1])} exclude the linear rule and "
        f"{sum(excludes[0.5])} the square root rule.",
        cells=cells,
        axis="power of the batch size",
        bounds=(0.5, 1),
        answer=answer,
    )


@claim(
    title="The size of the data set", source="Shallue et al., Golmant et al.", groups=["subsets"]
)
def data_set_size() -> Measured:
    """How far the batch size scales depends little on the size of the data set (Shallue et al.,
    Golmant et al.).

    The same network is trained on four sizes of subsets of Fashion-MNIST, to the middle goal. We
    fit the power of the number of training examples that the batch size with a fifth more examples
    follows. The claim agrees if the power is below 0.5, and disagrees if it is above.
    """
    goal = "val/error < 0.21"
    found = []
    for scaling in scalings_of("subsets"):
        size = known(scaling.critical_by_examples)
        if scaling.goal == goal and size is not None:
            _, _, options = scaling.workload.partition("train_examples=")
            found.append((int(options or 55_000), size))
    sizes = np.log2([size for size, _ in found])
    logs = np.log2([one.value for _, one in found])
    reach = np.array([reach_of(one) for _, one in found])
    weights = 1 / reach**2
    middle = (weights * sizes).sum() / weights.sum()
    spread = (weights * (sizes - middle) ** 2).sum()
    power = float((weights * (sizes - middle) * logs).sum() / spread)
    half = float(spread**-0.5)
    estimate = Estimate(value=power, low=power - half, high=power + half)
    return Measured(
        said=f"It grows like the number of examples to the power {said(estimate)}.",
        cells=[Cell(name=f"{size:,} examples", estimate=one) for size, one in found],
        axis="batch size that needs a fifth more examples",
        answer=beyond(estimate, "below", 0.5),
    )


@claim(title="The noise scale foretells B_crit", source="McCandlish et al.", groups=GROUPS.values())
def noise_scale_foretells() -> Measured:
    """The gradient noise scale foretells the critical batch size (McCandlish et al.).

    We divide the forecast of each curve by its measured B_crit, for SGD and momentum on the three
    workloads of real data. The claim agrees if the geometric mean lies between 1/3 and 3 with its
    whole interval, and disagrees if the whole interval lies outside.
    """
    cells = []
    for workload in GROUPS:
        for compared in forecasts_of(workload):
            if compared.recipe in ("sgd", "momentum") and compared.ratio is not None:
                name = f"{workload}, {compared.recipe}: forecast / measured"
                cells.append(Cell(name=name, estimate=compared.ratio))
    mean = mean_of(cells)
    return Measured(
        said=f"Forecasts are {said(mean)} times the measured B_crit.",
        cells=cells,
        axis="forecast / measured B_crit",
        bounds=(1 / 3, 3),
        answer=within(mean, 1 / 3, 3),
    )


@claim(
    title="Stricter goals allow larger batches", source="McCandlish et al.", groups=GROUPS.values()
)
def stricter_goals() -> Measured:
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
                float(scaling.goal.rpartition("<")[2]): known(scaling.critical_by_examples)
                for scaling in scalings_of(group)
                if scaling.recipe == recipe
            }
            strict, loose = by_goal[min(by_goal)], by_goal[max(by_goal)]
            if strict is not None and loose is not None:
                name = f"{workload}, {recipe}: strictest / loosest"
                cells.append(cell(name, strict, loose))
    mean = mean_of(cells)
    return Measured(
        said=f"From the loosest to the strictest goal it grows {said(mean)} times.",
        cells=cells,
        axis="at the strictest / at the loosest goal",
        bounds=(1,),
        answer=beyond(mean, "above", 1),
    )


@claim(
    title="The published panel",
    source="Shallue et al.",
    groups=("simple_cnn", "simple_cnn_closer"),
)
def published_panel() -> Measured:
    """Simple CNN trained with Nesterov momentum reaches 10 % validation error on Fashion-MNIST in
    the published number of steps (Shallue et al., their first figure).

    We divide our steps by the published ones at every batch size that we measured. The claim
    agrees if all ratios lie between 0.5 and 2, and disagrees if one lies outside by more than the
    10 % to which the figure can be read. It is undecided while batch sizes are missing.

    The published steps are those of the best of 100 points, ours those of the best of 12 points in
    wide ranges. So we tried ten more points near the best of the 12 ("closer"). They were added
    after the 12 had been measured, and do not count for the answer.
    """
    with open(HERE / "published_panel.csv", encoding="utf-8") as file:
        published = {int(line["batch_size"]): float(line["steps"]) for line in csv.DictReader(file)}
    read = {
        size: Estimate(value=steps, low=steps / 1.1, high=steps * 1.1)
        for size, steps in published.items()
    }

    def beside_published(group: str, name: str) -> list[Cell]:
        return [
            cell(f"{name}, batch size {size:,}", of_point(point), read[size])
            for (_, size), point in points_by(group).items()
            if point is not None and size in read
        ]

    cells = beside_published("simple_cnn", "12 points")
    inside, answer = all_within(cells, 0.5, 2)
    planned = len(points_by("simple_cnn"))
    if answer == "agrees" and len(cells) < planned:
        answer = "undecided"
    closer = beside_published("simple_cnn_closer", "10 points closer")
    near, _ = all_within(closer, 0.5, 2)
    return Measured(
        said=f"With 12 points, {len(cells)} of {planned} batch sizes reached the goal so far, and "
        f"{inside} of them within a factor of two of the published steps. With ten points closer "
        f"to the best, {near} of {len(closer)} did.",
        cells=[*cells, *closer],
        axis="steps / published steps",
        bounds=(0.5, 2),
        answer=answer,
    )


@claim(title="The noisy quadratic model", source="Zhang et al.", groups=("noisy_quadratic",))
def noisy_quadratic() -> Measured:
    """The noisy quadratic model foretells how steps fall with the batch size (Zhang et al.): here,
    its closed recursion against our trainings of it.

    At every batch size, we divide the steps that SGD took by the fewest that the recursion of the
    expected risk allows, over all learning rates. The claim agrees if all ratios lie between 0.9
    and 1.15, and disagrees if an interval lies outside.
    """
    points = {
        size: point
        for (recipe, size), point in points_by("noisy_quadratic", "val/loss < 0.01").items()
        if recipe == "sgd"
    }
    cells = []
    for size, point in sorted(points.items()):
        if point is not None:
            exact = Estimate(value=fewest_steps(size, goal=0.01, dimensions=100))
            name = f"batch size {size:,}: steps / fewest"
            cells.append(cell(name, of_point(point), exact))
    inside, answer = all_within(cells, 0.9, 1.15)
    return Measured(
        said=f"{inside} of {len(cells)} batch sizes need the fewest steps that the "
        f"recursion allows, within 10 to 15 %.",
        cells=cells,
        axis="steps / fewest steps of the recursion",
        bounds=(0.9, 1.15),
        answer=answer,
    )


@claim(
    title="Quality at large batch sizes", source="Shallue et al., You et al.", groups=("quality",)
)
def no_loss_of_quality() -> Measured:
    """Large batches do not train to a worse error if metaparameters are tuned (Shallue et al.; You
    et al. find that huge batches do).

    All batch sizes of the digits get the same number of steps with momentum, and no trial stops at
    a goal. The point that reached an error of 2.5 % first is trained again with ten other seeds. We
    take the lowest validation error of each repeat, and subtract the mean at batch size 32 from the
    mean at the full batch (Welch's interval). The claim agrees if the difference is below 0.01,
    and disagrees if it is above 0, each with the whole interval.
    """
    errors = best_errors()
    small, full = errors[32], errors[max(errors)]
    found = stats.ttest_ind(full, small, equal_var=False).confidence_interval(0.9)
    difference = Estimate(value=full.mean() - small.mean(), low=found.low, high=found.high)
    return Measured(
        said=f"The full batch comes to an error of {full.mean():.2%} and batch size 32 to "
        f"{small.mean():.2%}, in the mean of repeats.",
        cells=(Cell(name="full batch - batch size 32", estimate=difference),),
        axis="difference of the lowest validation errors",
        bounds=(0, 0.01),
        answer="agrees"
        if high_end(difference) < 0.01
        else "disagrees"
        if low_end(difference) > 0
        else "undecided",
    )


def _compared(*, pairs: Sequence[tuple[str, str, str]], what: str) -> Measured:
    """Whether one recipe scales further than another, over (workload, recipe, other recipe)."""
    cells = []
    for workload, recipe, other in pairs:
        first, second = fifth_more(workload, recipe), fifth_more(workload, other)
        if first is not None and second is not None:
            cells.append(cell(f"{workload}, {recipe} / {other}", first, second))
    mean = mean_of(cells)
    return Measured(
        said=what.format(said(mean)),
        cells=cells,
        axis="ratio of the batch sizes that need a fifth more examples",
        bounds=(1,),
        answer=beyond(mean, "above", 1),
    )


COOLED = {CNN: "cooled_cnn", "sympy/gpt": "cooled_gpt"}
"""Workload -> the run with each optimizer at a constant rate, and cooled down."""

TESTED = ("sgd", "momentum", "adamw", "muon")


def _cooling_moves_the_end(group: str) -> Measured:
    ends = {s.recipe: known(s.critical_by_examples) for s in scalings_of(group)}
    cells = [
        cell(f"{name}, cooled / constant", first, second)
        for name in TESTED
        if (first := ends.get(f"{name}_cooled")) and (second := ends.get(name))
    ]
    mean = mean_of(cells)
    moved = within(mean, 0.8, 1.25)
    answers: dict[Answer, Answer] = {"agrees": "disagrees", "disagrees": "agrees"}
    return Measured(
        said=f"Cooled down, {said(mean)} times the batch size needs a fifth more examples, over "
        f"{len(cells)} of {len(TESTED)} optimizers.",
        cells=cells,
        axis="ratio of the batch sizes that need a fifth more examples",
        bounds=(0.8, 1.25),
        answer=answers.get(moved, moved),
    )


def _cooling_changes_the_order(group: str) -> Measured:
    points, ratios, cells = points_by(group), dict[str, tuple[Estimate, Estimate]](), list[Cell]()
    for first, second in itertools.combinations(TESTED, 2):
        for size in sorted({size for _, size in points}):
            names = (first, second, f"{first}_cooled", f"{second}_cooled")
            steps = [of_point(p) for name in names if (p := points[name, size]) is not None]
            if len(steps) == len(names):
                pair = f"{first} / {second} at {size}"
                constant = cell(f"{pair}, constant", steps[0], steps[1])
                cooled = cell(f"{pair}, cooled", steps[2], steps[3])
                cells += [constant, cooled]
                ratios[pair] = constant.estimate, cooled.estimate
    decided = {
        pair: (beyond(constant, "above", 1), beyond(cooled, "above", 1))
        for pair, (constant, cooled) in ratios.items()
    }
    clear = [both for both in decided.values() if "undecided" not in both]
    reversed_ = sum(constant != cooled for constant, cooled in clear)
    enough = len(clear) >= len(ratios) / 2 > 0
    answer: Answer = "disagrees" if enough and not reversed_ else "undecided"
    return Measured(
        said=f"{reversed_} of {len(clear)} comparisons of two optimizers that are clear both ways "
        f"come out the other way round cooled down ({len(ratios)} comparisons in all).",
        cells=cells,
        axis="ratio of the steps of two optimizers",
        bounds=(1,),
        answer="agrees" if reversed_ > 1 else answer,
    )


@claim(title="Cooling down moves the end of scaling, CNN", source=DECAYED, groups=[COOLED[CNN]])
def cooling_moves_the_end_cnn() -> Measured:
    """Curves of different batch sizes cross under warmup-stable-decay, so the batch size scales to
    another end when the learning rate comes down (2601.05034).

    For each of SGD, momentum, AdamW and Muon on digits/cnn, we divide the batch size that needs a
    fifth more examples with cooldowns of a fifth of the training by that at a constant rate. The
    claim agrees if the whole interval of the geometric mean lies outside of 0.8 to 1.25, and
    disagrees if it lies within.
    """
    return _cooling_moves_the_end(COOLED[CNN])


@claim(title="Cooling down changes the order, CNN", source=DECAYED, groups=[COOLED[CNN]])
def cooling_changes_the_order_cnn() -> Measured:
    """Rankings of optimizers flip when the learning rate decays (2509.02046).

    At each batch size of digits/cnn we divide the steps of each two of SGD, momentum, AdamW and
    Muon, at a constant rate and cooled down. A comparison is clear if the whole interval lies on
    one side of 1. The claim agrees if at least two comparisons are clear both ways and contradict
    each other. Of optimizers that are equal, one comparison does so by chance in at most one of
    200, and two of 24 in less than one run of 100. It disagrees if none does and at least half of
    all comparisons are clear both ways.
    """
    return _cooling_changes_the_order(COOLED[CNN])


@claim(title="Cooling down moves the end, GPT", source=DECAYED, groups=[COOLED["sympy/gpt"]])
def cooling_moves_the_end_gpt() -> Measured:
    """The same of a small language model (2601.05034).

    The rule is the same, on sympy/gpt.
    """
    return _cooling_moves_the_end(COOLED["sympy/gpt"])


@claim(title="Cooling down changes the order, GPT", source=DECAYED, groups=[COOLED["sympy/gpt"]])
def cooling_changes_the_order_gpt() -> Measured:
    """The same of a small language model (2509.02046).

    The rule is the same, on sympy/gpt.
    """
    return _cooling_changes_the_order(COOLED["sympy/gpt"])


CLAIMS: tuple[Claim, ...] = tuple(REGISTERED)
"""All claims, in the order of the page."""
