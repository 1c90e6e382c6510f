"""Runs Optuna's samplers by generations: a sampler proposes a whole generation of points, and is
told the values of all of them before it proposes the next one. Also reads studies of Optuna that
were made elsewhere."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, TPESampler
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from threadpoolctl import threadpool_limits

from orchestrator.files.own_code import import_own
from orchestrator.records import BadInput, Choice, Range, Space, Value, cut, escaped, unreadable
from orchestrator.search.space import assemble

_DRAWS = 64
"""Number of random points that are drawn in search of a new one. If all of them were proposed
before, the space is taken to have no other point."""

_quietly = partial(warnings.catch_warnings, action="ignore")
"""Silences Optuna's warnings about experimental features and clipped values."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Adaptive:
    """A search that learns from results: a function of its arguments and of what it was told, so
    that an instance that is told the same generations proposes the same points."""

    def __init__(self, space: Space, algorithm: str, seed: int) -> None:
        self._space = space
        self._algorithm = algorithm
        self._seed = seed
        self._searched = {
            name: entry for name, entry in space.items() if isinstance(entry, (Range, Choice))
        }
        self._distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(range(len(entry.options)))
            if isinstance(entry, Choice)
            else FloatDistribution(0, 1)
            for name, entry in self._searched.items()
        }
        self._study: optuna.Study | None = None
        self._rng = np.random.default_rng(seed)
        self._asked: list[Trial] = []

    def propose(self, first: int, count: int) -> list[dict[str, Value]]:
        """The next `count` points, which the caller numbers from `first` on. They depend on all
        results so far, and are equal only if the sampler has no others. A smaller count gives the
        first of the same points. The count of the first generation is taken for that of all."""
        assert not self._asked, "the last generation has not been told"
        points: list[dict[str, Value]] = []
        # While trials train, threads that wait for each other make a Gaussian process 10 times
        # slower, so it gets one thread.
        with _quietly(), threadpool_limits(1):
            if self._study is None:
                sampler = _sampler(self._algorithm, self._seed, self._distributions, count)
                self._study = optuna.create_study(sampler=sampler, direction="minimize")
            for _ in range(count):
                trial = self._ask(self._study, points)
                self._asked.append(trial)
                points.append(self._unlike(points, self._point(trial.params)))
        return points

    def learn(self, points: Sequence[Mapping[str, Value]], values: Sequence[float | None]) -> None:
        """Tells the sampler the values of the points of the last `propose`, in the same order.
        Lower is better and infinity is worst. None means that a point has no value, because its
        worker died at every attempt."""
        assert self._study is not None, "nothing was proposed"
        with _quietly():
            for trial, point, value in zip(self._asked, points, values, strict=True):
                if value is not None and point == self._point(trial.params):
                    self._study.tell(trial, value)
                    continue
                failed = self._study.tell(trial, state=TrialState.FAIL)
                if value is not None:
                    self._study.add_trial(self._replacement(failed, point, value))
        self._asked = []

    def _ask(self, study: optuna.Study, others: Sequence[Mapping[str, Value]]) -> Trial:
        trial = study.ask(self._distributions)
        if self._point(trial.params) in others:
            study.tell(trial, state=TrialState.FAIL)
            trial = study.ask(self._distributions)
        return trial

    def _unlike(
        self, others: Sequence[Mapping[str, Value]], point: dict[str, Value]
    ) -> dict[str, Value]:
        """`point`, or a random point if rounding made it equal to one of the others."""
        if point not in others:
            return point
        rows: list[list[float]] = self._rng.random((_DRAWS, len(self._searched))).tolist()
        drawn = (assemble(self._space, row) for row in rows)
        return next((other for other in drawn if other not in others), point)

    def _point(self, sampled: Mapping[str, float | int]) -> dict[str, Value]:
        fractions = [
            (sampled[name] + 0.5) / len(entry.options)
            if isinstance(entry, Choice)
            else sampled[name]
            for name, entry in self._searched.items()
        ]
        return assemble(self._space, fractions)

    def _replacement(
        self, failed: FrozenTrial, point: Mapping[str, Value], value: float
    ) -> FrozenTrial:
        """A trial of `point`, which was trained although the sampler asked for another point: the
        generation already had that other point, or another version of Optuna asked."""
        fractions = {
            name: entry.options.index(point[name])
            if isinstance(entry, Choice)
            else min(max(entry.fraction(float(point[name])), 0.0), 1.0)
            for name, entry in self._searched.items()
        }
        return create_trial(
            params={**failed.params, **fractions},
            distributions=self._distributions,
            value=value,
            # CMA-ES and NSGA-II write the generation of a trial to these attributes.
            system_attrs=failed.system_attrs,
        )


def check_sampler(algorithm: str) -> None:
    """Refuses a sampler that can't be made."""
    with _quietly():
        _sampler(algorithm, 0, {}, 1)


def _sampler(
    algorithm: str, seed: int, distributions: Mapping[str, BaseDistribution], count: int
) -> BaseSampler:
    seed %= 2**32  # NumPy's RandomState takes 32 bits
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
        raise BadInput(
            f"The sampler {algorithm!r}, called with the argument `seed`, raised: {error}.",
            code="not-callable",
        ) from error
    if not isinstance(sampler, BaseSampler):
        raise BadInput(
            f"{algorithm!r} must return an optuna.samplers.BaseSampler, but returned {sampler!r}.",
            code="wrong-result",
        )
    return sampler


class _CmaEs(CmaEsSampler):
    """CMA-ES that learns from every point. Optuna's CMA-ES draws the first generation at random and
    never uses it, nor the points of a generation beyond the population size."""

    def __init__(
        self, seed: int, distributions: Mapping[str, BaseDistribution], count: int
    ) -> None:
        self._ranges = {
            name: distribution
            for name, distribution in distributions.items()
            if isinstance(distribution, FloatDistribution)
        }
        # The default population size of CMA-ES, rounded up to whole generations.
        default = 4 + math.floor(3 * math.log(max(len(self._ranges), 1)))
        super().__init__(
            seed=seed,
            n_startup_trials=0,
            popsize=math.ceil(default / count) * count,
            with_margin=False,
            lr_adapt=False,
            use_separable_cma=False,
            warn_independent_sampling=False,
        )

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return dict(self._ranges)


def trials_in(source: str) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """STUDY/NUMBER of each trial in a storage, sqlite:///FILE or a journal -> its settings, and its
    rows, of which each has a `step` if the value is an intermediate one."""
    file = Path(source.removeprefix("sqlite:///"))
    if not file.is_file():
        raise BadInput(f"{source} can't be read: there is no file {file}.", code="unreadable")
    try:
        storage: Any = (
            # Otherwise Optuna would make its tables in any file.
            RDBStorage(f"sqlite:///file:{file.resolve()}?mode=ro&uri=true")
            if source.startswith("sqlite:")
            else JournalStorage(JournalFileBackend(source))
        )
        studies = {
            study.study_name: storage.get_all_trials(study._study_id)
            for study in storage.get_all_studies()
        }
    except Exception as error:  # Optuna and the libraries below it raise all kinds of errors
        first, _, _ = str(error).partition("\n")  # SQL may follow
        reason = escaped(cut(f"{type(error).__name__}: {first}", 300))
        raise unreadable(f"Optuna's storage {source}", reason) from None
    return {
        f"{name}/{trial.number}": (
            {"state": trial.state.name.lower(), **trial.user_attrs, **trial.params},
            [
                {"step": step, "value": value}
                for step, value in sorted(trial.intermediate_values.items())
            ]
            or [{f"value_{n}" if n else "value": v for n, v in enumerate(trial.values or [])}],
        )
        for name, trials in studies.items()
        for trial in trials
    }
