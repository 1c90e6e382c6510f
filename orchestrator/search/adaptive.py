"""Optuna's samplers, asked for a whole generation of points at a time and told their values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from threadpoolctl import threadpool_limits

from orchestrator.files.own_code import import_own
from orchestrator.records import BadInput, Choice, Range, Space, Value
from orchestrator.search.space import assemble

_DRAWS = 64
"""After so many points at random that are all there already, the space holds no other."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Adaptive:
    """A search that learns. It is a function of its arguments and of what it was told, so telling
    a new one the same generations brings it to the same place."""

    def __init__(self, space: Space, algorithm: str, seed: int) -> None:
        self._space = space
        self._algorithm = algorithm
        self._seed = seed
        self._searched = {
            name: entry for name, entry in space.items() if isinstance(entry, (Range, Choice))
        }
        self._distributions = {name: _distribution(e) for name, e in self._searched.items()}
        self._study: optuna.Study | None = None
        self._rng = np.random.default_rng(seed)
        self._asked: list[Trial] = []

    def propose(self, first: int, count: int) -> list[dict[str, Value]]:
        """The next `count` points (number `first` and on, as the caller counts them), with all that
        was told in mind; no two the same, as far as the sampler has others. A smaller count gives
        the first of them; the first generation's is taken for the size of all."""
        assert not self._asked, "the last generation has not been told"
        points: list[dict[str, Value]] = []
        # Beside training, threads that wait for each other make a Gaussian process 10 times slower.
        with _quietly(), threadpool_limits(1):
            if self._study is None:
                self._study = self._new_study(count)
            for _ in range(count):
                trial = self._ask(self._study, points)
                self._asked.append(trial)
                points.append(self._unlike(points, self._point(trial.params)))
        return points

    def learn(self, points: Sequence[Mapping[str, Value]], values: Sequence[float | None]) -> None:
        """What became of the points of the last `propose`, in its order; lower is better, infinity
        is worst, None: nothing is known (its worker kept dying)."""
        assert self._study is not None, "nothing was proposed"
        with _quietly():
            for trial, point, value in zip(self._asked, points, values, strict=True):
                if value is not None and point == self._point(trial.params):
                    self._study.tell(trial, value)
                    continue
                failed = self._study.tell(trial, state=TrialState.FAIL)
                if value is not None:
                    self._study.add_trial(self._instead_of(failed, point, value))
        self._asked = []

    def _new_study(self, count: int) -> optuna.Study:
        sampler = _sampler(self._algorithm, self._seed, self._distributions, count)
        return optuna.create_study(sampler=sampler, direction="minimize")

    def _ask(self, study: optuna.Study, others: Sequence[Mapping[str, Value]]) -> Trial:
        trial = study.ask(self._distributions)
        if self._point(trial.params) in others:
            study.tell(trial, state=TrialState.FAIL)
            trial = study.ask(self._distributions)
        return trial

    def _unlike(
        self, others: Sequence[Mapping[str, Value]], point: dict[str, Value]
    ) -> dict[str, Value]:
        """`point`; if it is among the others, as rounding makes it be, then one at random."""
        if point not in others:
            return point
        rows: list[list[float]] = self._rng.random((_DRAWS, len(self._searched))).tolist()
        drawn = (assemble(self._space, row) for row in rows)
        return next((other for other in drawn if other not in others), point)

    def _point(self, told: Mapping[str, float | int]) -> dict[str, Value]:
        fractions = [
            (told[name] + 0.5) / len(entry.options) if isinstance(entry, Choice) else told[name]
            for name, entry in self._searched.items()
        ]
        return assemble(self._space, fractions)

    def _instead_of(
        self, failed: FrozenTrial, point: Mapping[str, Value], value: float
    ) -> FrozenTrial:
        """A trial of `point`, where the sampler asked for another: the generation had that one
        already, or another version of Optuna asked."""
        there = {
            name: entry.options.index(point[name])
            if isinstance(entry, Choice)
            else min(max(entry.fraction(float(point[name])), 0.0), 1.0)
            for name, entry in self._searched.items()
            if name in point
        }
        return create_trial(
            params={**failed.params, **there},
            distributions=self._distributions,
            value=value,
            # CMA-ES and NSGA-II keep there which of their generations a trial belongs to.
            system_attrs=failed.system_attrs,
        )


def check_sampler(algorithm: str) -> None:
    """Refuses a sampler that can't be made."""
    with _quietly():
        _sampler(algorithm, 0, {}, 1)


def _sampler(
    algorithm: str, seed: int, distributions: Mapping[str, BaseDistribution], count: int
) -> BaseSampler:
    seed %= 2**32  # as many bits as NumPy's RandomState takes
    match algorithm:
        case "tpe":
            return TPESampler(
                seed=seed,
                n_startup_trials=10,
                n_ei_candidates=24,
                multivariate=True,
                group=False,
                constant_liar=True,
            )
        case "gp":
            return GPSampler(
                seed=seed,
                n_startup_trials=10,
                deterministic_objective=False,
                warn_independent_sampling=False,
            )
        case "cmaes":
            return _CmaEs(seed, distributions, count)
    factory = import_own("sampler", algorithm)
    try:
        sampler = factory(seed=seed)
    except Exception as error:
        raise BadInput(f"The sampler {algorithm!r} can't be made with `seed=`: {error}.") from error
    if not isinstance(sampler, BaseSampler):
        raise BadInput(
            f"{algorithm!r} must make an optuna.samplers.BaseSampler, but made {sampler!r}."
        )
    return sampler


class _CmaEs(CmaEsSampler):
    """CMA-ES that learns from every point. Optuna's own draws the first generation at random and
    never looks at it, nor at what a generation has beyond the population."""

    def __init__(
        self, seed: int, distributions: Mapping[str, BaseDistribution], count: int
    ) -> None:
        self._ranges = {
            name: distribution
            for name, distribution in distributions.items()
            if isinstance(distribution, FloatDistribution)
        }
        advised = 4 + math.floor(3 * math.log(max(len(self._ranges), 1)))
        super().__init__(
            seed=seed,
            n_startup_trials=0,
            popsize=math.ceil(advised / count) * count,
            with_margin=False,
            lr_adapt=False,
            use_separable_cma=False,
            warn_independent_sampling=False,
        )

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return dict(self._ranges)


def _distribution(entry: Range | Choice) -> BaseDistribution:
    if isinstance(entry, Choice):
        return CategoricalDistribution(range(len(entry.options)))
    return FloatDistribution(0, 1)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without Optuna's warnings of what is experimental or clipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
