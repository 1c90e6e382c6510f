"""Decides which trials gangs are given, stacked or one at a time, and which are tried again."""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.cluster.board import numbered
from orchestrator.cluster.failures import Failure
from orchestrator.cluster.gang import GangSettings
from orchestrator.planning.sweep import Faults
from orchestrator.records import Study, StudyKey, Trial, TrialKey
from orchestrator.search import Queue

logger = logging.getLogger(__name__)

MAX_LOSSES = 20
"""Number of times that a trial is tried again because its machine was lost, which is not the
trial's fault."""

BACKOFF_SECONDS = 1.0
"""Seconds before the first new attempt; the wait doubles before each further attempt."""

LONGEST_BACKOFF_SECONDS = 60.0


@dataclass
class _Pack:
    """A pack that a gang has, or is about to be given."""

    left: dict[TrialKey, Trial]
    """The trials that have not ended."""
    begun: set[TrialKey] = field(default_factory=set)
    """The trials that the gang has reported as begun, so that each has a slot."""


@dataclass
class _Tries:
    """The attempts at a trial so far."""

    failures: int = 0
    losses: int = 0
    alone: bool = False
    """Whether the trial is trained outside of a stack from now on."""


@dataclass(frozen=True)
class Verdict:
    """The decision on the trials of a pack that failed: which are tried again, and which has failed
    for good."""

    again: Sequence[Trial] = ()
    failed: Trial | None = None
    """The trial that has failed for good, because it has used all its attempts."""
    counts: bool = False
    """Whether a trial was certainly at fault, rather than a machine or another trial of the
    pack."""


class Packs:
    def __init__(
        self,
        settings: GangSettings,
        widths: Mapping[StudyKey, int],
        director: Queue,
        gangs: int,
        faults: Faults,
        timed: Collection[StudyKey],
    ) -> None:
        """`gangs` is the largest number of gangs at a time. The studies in `timed` have measured
        times of a step without stacking."""
        self._settings, self._widths, self._director = settings, widths, director
        self._gangs, self._max_failures = gangs, faults.max_failures
        self._timed = {*timed}
        self._out: dict[tuple[int, ...], _Pack] = {}
        self._again: list[tuple[float, TrialKey, Trial]] = []
        """Times at which trials are due for another attempt."""
        self._tries: defaultdict[TrialKey, _Tries] = defaultdict(_Tries)
        self.micro_batches: dict[int, int] = {}
        """Study -> micro-batch that is known to fit, for studies where a larger one did not."""

    @property
    def none_again(self) -> bool:
        return not self._again

    def next_config(self) -> dict[str, Any] | None:
        """The config of the pack to start next, or None if there is none now."""
        if self._again and self._again[0][0] <= time.monotonic():
            pack = [self._director.proposal(heapq.heappop(self._again)[2])]
        else:
            pack = self._director.next_pack(self._most)
        if not pack:
            return None
        trials = {proposal.trial.key: proposal.trial for proposal in pack}
        study = pack[0].trial.study
        alone = any(self._tries[key].alone for key in trials)
        width = 1 if alone else self._widths[study.key]
        config = self._settings.config(
            pack,
            width=width,
            micro_batch=self.micro_batches.get(self._settings.number(study)),
            to_time=width > 1 and study.key not in self._timed,
        )
        self._timed.add(study.key)
        self._out[numbered(config)] = _Pack(left=trials)
        return config

    def _most(self, study: Study, waiting: int) -> int:
        """Number of trials for one gang: all that wait, or, if there are more gangs than studies,
        so many that other gangs get trials, too."""
        if self._widths[study.key] == 1:
            return 1
        with_gangs = Counter(key.study for pack in self._out.values() for key in pack.left)
        of_study = sum(
            any(key.study == study.key for key in pack.left) for pack in self._out.values()
        )
        studies_waiting = sum(
            bool(search.waiting or with_gangs[key])
            for key, search in self._director.searches.items()
        )
        share = self._gangs // studies_waiting - of_study
        return math.ceil(waiting / max(share, 1))

    def is_out(self, config: Mapping[str, Any]) -> bool:
        """Tells whether a gang has the pack, or is about to get it."""
        return numbered(config) in self._out

    def started(self, config: Mapping[str, Any]) -> list[Trial]:
        """Takes note that a pack was started. Returns the trials that have a slot at once."""
        return [*self._out[numbered(config)].left.values()][: config["width"]]

    def begun(self, config: Mapping[str, Any], key: TrialKey) -> Trial:
        pack = self._out[numbered(config)]
        pack.begun.add(key)
        return pack.left[key]

    def ended(self, config: Mapping[str, Any], key: TrialKey) -> None:
        del self._out[numbered(config)].left[key]

    def worked_through(self, config: Mapping[str, Any]) -> None:
        del self._out[numbered(config)]

    def failed(self, config: Mapping[str, Any], failure: Failure) -> Verdict:
        pack = self._out.pop(numbered(config))
        left = [*pack.left.values()]
        if len(left) != 1:
            self._try_apart(pack, failure)
            return Verdict(again=left)
        (ours,) = left
        tries = self._tries[ours.key]
        if config["width"] > 1 and not failure.died:
            # The cause may be the stack: trying two examples does not show every behaviour of code.
            tries.alone = True
            self._try_again(ours, 0.0)
            return Verdict(again=left)
        lost = failure.machine_lost
        tries.losses, tries.failures = tries.losses + lost, tries.failures + (not lost)
        if tries.failures > self._max_failures or tries.losses > MAX_LOSSES:
            return Verdict(failed=ours, counts=not lost)
        wait = BACKOFF_SECONDS * 2 ** (tries.failures + tries.losses - 1)
        self._try_again(ours, min(wait, LONGEST_BACKOFF_SECONDS))
        return Verdict(again=left, counts=not lost)

    def _try_apart(self, pack: _Pack, failure: Failure) -> None:
        """Tries the trials of a failed pack again. It is not known which trial of a stack was at
        fault, so each that may have been is tried again without the others, and this failure counts
        against none of them. If a machine is lost for the first time, no trial was at fault."""
        for key, trial in pack.left.items():
            tries = self._tries[key]
            blameless = failure.machine_lost and not tries.losses
            tries.losses += failure.machine_lost
            # A process that died could not report the trials that it began in its last second.
            if blameless or not (failure.died or key in pack.begun):
                self._director.put_back(trial)
            else:
                self._try_again(trial, 0.0)

    def _try_again(self, trial: Trial, seconds: float) -> None:
        name = f"{trial.study.key} trial {trial.index}"
        logger.warning("%s is tried again in %g s", name, seconds)
        heapq.heappush(self._again, (time.monotonic() + seconds, trial.key, trial))
