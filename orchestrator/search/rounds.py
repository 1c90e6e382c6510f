"""The course of one study: the trials that it needs, as far as the trials that ended tell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from orchestrator.records import Goal, Study, Trial, TrialKey, Value, best_by_median, derive_seed
from orchestrator.search.proposer import propose, sampler_for
from orchestrator.search.race import (
    Bounds,
    Passage,
    Ranking,
    Result,
    bounds_after,
    closed,
    ending,
    no_bounds,
    shortfall,
)
from orchestrator.search.waiting import Waiting

STAGES = (8, 2)
"""Divisors of the budget: all trials are first trained up to an eighth of it, then those that must
go on up to half of it. The results up to then tell which trials should go on first. Programs that
begin anew have the first stage alone: each stage repeats all steps of those before."""

SHORTEST_LIMIT = 20
"""Smallest limit in steps. With a smaller limit, interrupting trials costs more than it saves."""


class StudySearch:
    """Searches one study in rounds. The first round has N points, the next as many new points as
    trials diverged, and so on. Then follow repeats: those that choose points, and those that
    measure them. A round opens when all trials of the round before have settled. Its trials depend
    on results alone, not on the order in which results arrived."""

    def __init__(self, study: Study, sweep_seed: int) -> None:
        self.study = study
        self._seed = sweep_seed
        self._sampler = sampler_for(study, sweep_seed)
        self._results: dict[TrialKey, Result] = {}
        self.bounds: Bounds = no_bounds(study)
        self._closest: tuple[float, TrialKey] | None = None
        """The trial that ended closest to the last goal, with its distance from it."""
        self._limits: list[int] = []
        self._opened: dict[TrialKey, Trial] = {}
        """All trials of this round and the rounds before."""
        self._ended: set[TrialKey] = set()
        """Opened trials that are trained no further."""
        self._round: list[Trial] = []
        self._unsettled: list[Trial] = []
        """The trials of the round in reverse order, without the settled trials at its beginning. A
        settled trial stays settled while the round lasts, so each trial is checked only until it
        has settled."""
        self._waiting = Waiting(study.space, self._gap)
        self._needed: set[TrialKey] = set()
        """Trials whose results decide which points come next."""
        self._course: Iterator[list[Trial]] | None = None
        self.may_repeat = study.most_repeats
        """The largest number of repeats that may still be planned."""
        self.done = False

    @property
    def begun(self) -> bool:
        return self._course is not None

    @property
    def planned(self) -> int:
        """Number of trials that are known to be needed."""
        return max(len(self._opened), self.study.trials)

    @property
    def limit(self) -> int | None:
        """Step up to which trials are trained at present; None: the whole budget."""
        return self._limits[0] if self._limits else None

    @property
    def settled(self) -> int:
        """How many trials are trained no further, whatever others do. It never decreases."""
        return len(self._ended)

    def begin(self, inherited: int | None) -> None:
        """Opens the first round. `inherited` is an inherited budget in steps, if there is one."""
        budget = self.study.budget_steps
        if self.study.stop_dominated and not self.study.is_one_point:
            begins_anew = self.study.program is not None and not self.study.program.resumes
            limits = [budget // parts for parts in (STAGES[:1] if begins_anew else STAGES)]
            self._limits = [limit for limit in limits if limit >= SHORTEST_LIMIT]
        if inherited is not None and inherited < budget:
            self._limits = [*(limit for limit in self._limits if limit < inherited), inherited]
        self._course = chain(self._rounds(), self._repeats())
        self._advance()

    def record(self, result: Result) -> bool:
        """Records a trial that ended. Returns whether it changes the bounds."""
        key = result.key
        self._results[key] = result
        before = self.bounds
        self.bounds = bounds_after(self.bounds, self.study, result)
        if math.isfinite(gap := self._gap(key)):
            self._closest = min(self._closest or (gap, key), (gap, key))
        self._note_end(key)
        if self._course is not None:
            self._advance()
        return self.bounds != before

    @property
    def waiting(self) -> int:
        """Number of trials that can be started now."""
        return len(self._waiting)

    def next(self, near: Mapping[str, Value] | None, most: int = 1) -> list[Trial]:
        """At most `most` trials to start, all of one kind, those near the point `near` first."""
        return self._waiting.take(near, most)

    def put_back(self, trial: Trial) -> None:
        """Takes back a trial that was not started. It waits again if it is still needed."""
        if trial in self._round and not self._settled(trial):
            self._waiting.add(trial)

    def bounds_for(self, trial: Trial) -> Bounds:
        """The rankings that `trial` has to enter."""
        if trial.repeat:
            # A repeat measures its point only at the goals that this point won.
            if self.study.is_one_point:
                return no_bounds(self.study)
            return tuple(
                () if trial.index in self._repeated(ranking) else closed(self.study)
                for ranking in self.bounds
            )
        return self.bounds if self.study.stop_dominated else no_bounds(self.study)

    def best(self, *, reached: bool) -> Mapping[str, Value] | None:
        """The point that passed the last goal first. If none passed it, returns the point that came
        closest, or None if `reached`."""
        if self.bounds[-1]:
            return self._results[self._key(self.bounds[-1][0][1])].params
        closest = None if reached else self._closest
        return closest and self._results[closest[1]].params

    def frontier_step(self, end: int | None = None) -> int | None:
        """The step by which trials of index below `end` had passed all goals, whichever trial
        passed which goal; None if a goal was not passed."""
        bounds = self.bounds if end is None else self._bounds_below(end)
        return max(ranking[0][0] for ranking in bounds) if all(bounds) else None

    def _bounds_below(self, end: int) -> Bounds:
        """The rankings among the trials of index below `end`."""
        bounds = no_bounds(self.study)
        for key, result in self._results.items():
            if key.index < end:
                bounds = bounds_after(bounds, self.study, result)
        return bounds

    def _advance(self) -> None:
        assert self._course is not None
        while not self.done:
            while self._unsettled and self._settled(self._unsettled[-1]):
                self._unsettled.pop()
            if self._unsettled:
                return
            opened = next(self._course, None)
            self.done, self._round = opened is None, opened or []
            self._unsettled = self._round[::-1]
            # Trials may still wait that were beaten since by a trial that was running.
            self._waiting.clear()
            lost = self.lost
            for trial in self._round:
                self._opened[trial.key] = trial
                self._note_end(trial.key)
                if not self._settled(trial) and trial not in lost:
                    self._waiting.add(trial)
        for key in self._opened:
            self._note_end(key)

    def _note_end(self, key: TrialKey) -> None:
        if key in self._opened and key in self._results and self.is_final(key):
            self._ended.add(key)

    def _settled(self, trial: Trial) -> bool:
        """Whether a trial needs no more training in this round. A trial that was ended early counts
        as settled only if it still can't win: since then, the trial that beat it may have been
        removed from the run, or its limit lifted."""
        key = trial.key
        if key not in self._results or (key in self._needed and self._results[key].died):
            return False
        return self.has_ended(trial, None if trial.repeat else self.limit)

    @property
    def lost(self) -> list[Trial]:
        """Trials whose processes were lost and whose results the search needs to go on. Without
        them, it would choose other points than it would have chosen with them."""
        needed = [t for t in self._round if t.key in self._needed] if self._needed else []
        return [trial for trial in needed if self._results[trial.key].died]

    @property
    def stalled(self) -> bool:
        """Whether nothing starts before lost trials are tried again, by the next process."""
        lost = self.lost
        return bool(lost) and [t for t in self._round if not self._settled(t)] == lost

    def is_final(self, key: TrialKey) -> bool:
        """Whether a trial that ended is trained no further, whatever others do."""
        return self.done or self._results[key].status != "paused"

    def set_aside(self) -> set[TrialKey]:
        """The trials that ended but may have to go on."""
        return {key for key in self._results if not self.is_final(key)}

    def has_ended(self, trial: Trial, limit: int | None = None) -> bool:
        """Whether a trial that ended can't gain anything by going on up to the `limit`."""
        result = self._results[trial.key]
        return result.status not in ("dominated", "paused") or None is not ending(
            self.study,
            self.bounds_for(trial),
            limit,
            unmet=result.unmet,
            upcoming=result.upcoming,
            index=trial.index,
        )

    def _rounds(self) -> Iterator[list[Trial]]:
        """Yields rounds until enough points count or as many trials were opened as may be. A point
        counts unless it diverged before the step by which all goals were passed."""
        study, sampler = self.study, self._sampler
        chosen = sampler.propose if sampler else partial(propose, study, self._seed)
        at_once = study.search.generation if sampler else study.launches
        counted, end = 0, 0
        while count := min(study.trials - counted, study.launches - end, at_once):
            yield from self._without_losses(map(self._key, range(end)))
            points = chosen(end, count)
            if not points:
                break
            opened = [self._trial(end + number, point) for number, point in enumerate(points)]
            end += len(opened)
            yield opened
            while self._limits and self._beyond_limit(end):
                del self._limits[0]
                yield [trial for key, trial in self._opened.items() if key.index < end]
            step = self.frontier_step(end)
            results = [self._results[trial.key] for trial in opened]
            counted += sum(
                not (result.status == "diverged" and (step is None or result.steps < step))
                for result in results
            )
            if sampler:
                winners = [ranking[0] if ranking else None for ranking in self._bounds_below(end)]
                values = [self._value(result, winners) for result in results]
                sampler.learn([result.params for result in results], values)

    def _without_losses(self, keys: Iterable[TrialKey]) -> Iterator[list[Trial]]:
        """Yields a round with the needed trials, if there are any, until none of these is lost."""
        self._needed |= {key for key in keys if self._results[key].died}
        if self._needed:
            yield [self._opened[key] for key in sorted(self._needed)]

    def _beyond_limit(self, end: int) -> bool:
        """Whether trials must go on beyond the limit, because fewer than `keep` of those with index
        below `end` passed some goal within it. In a resumed run that had lifted the limit before,
        trials may have passed the goal beyond the limit, and others may still be better."""
        keep, limit = self.study.keep, self._limits[0]
        return any(
            len(ranking) < keep or ranking[-1][0] > limit for ranking in self._bounds_below(end)
        )

    def _key(self, index: int, repeat: int = 0) -> TrialKey:
        return TrialKey(study=self.study.key, index=index, repeat=repeat)

    def _trial(self, index: int, params: Mapping[str, Value], repeat: int = 0) -> Trial:
        parts: tuple[int | str, ...] = ("trial", index, *(("repeat", repeat) if repeat else ()))
        return Trial(
            study=self.study,
            index=index,
            seed=derive_seed(self._seed, *parts),
            params=params,
            repeat=repeat,
        )

    def _repeats(self) -> Iterator[list[Trial]]:
        """Yields the repeats: those that choose points, then the others of the chosen points."""
        study = self.study
        repeated = {index for ranking in self.bounds for index in self._repeated(ranking)}
        if study.is_one_point:  # repeated even if it did not pass a goal: another seed may
            repeated = {0}
        self.may_repeat = study.most_judging(len(repeated))
        choosing = self._again(repeated, range(1, (study.choosing or study.repeats) + 1))
        yield choosing
        if study.choosing:
            yield from self._without_losses(trial.key for trial in choosing)
            self.may_repeat = 0
            judging = range(study.choosing + 1, study.repeats + 1)
            judged: set[int | None] = {None}
            # A point that mostly missed its goal gives way to the next, which is judged, too.
            while chosen := {*map(self._chosen, study.goals, self.bounds)} - judged:
                judged |= chosen
                yield self._again((one for one in chosen if one is not None), judging)

    def _again(self, points: Iterable[int], repeats: range) -> list[Trial]:
        return [
            self._trial(index, self._results[self._key(index)].params, repeat)
            for index in sorted(points)
            for repeat in repeats
        ]

    def _chosen(self, goal: Goal, ranking: Ranking) -> int | None:
        """The trial that its repeats choose for one goal, as results.repeats reads it from files;
        None if they all failed."""
        half, count = self.study.choosing, self.study.repeats
        choosing, judging = (
            {
                index: of
                for index in self._repeated(ranking)
                if (of := self._passed(goal, index, part))
            }
            for part in (range(1, half + 1), range(half + 1, count + 1))
        )
        return best_by_median(choosing, judging)

    def _passed(self, goal: Goal, index: int, repeats: range) -> list[float]:
        """The steps at which these repeats passed a goal, of those that did not fail; none as long
        as some are missing."""
        ended = [self._results.get(self._key(index, repeat)) for repeat in repeats]
        known = [result for result in ended if result is not None]
        if len(known) < len(ended):
            return []
        return [one.passed.get(goal, math.inf) for one in known if one.status != "failed"]

    def _repeated(self, ranking: Ranking) -> list[int]:
        """The indices of the trials that are repeated for one goal."""
        return [index for _, index in ranking[: self.study.repeat_best]]

    def _value(self, result: Result, first: Sequence[Passage | None]) -> float | None:
        """The value of a trial that a sampler is told; lower is better. For the trial that passed
        the goal first, it is log2(steps). Every other trial gets a value above log2 of the budget,
        which grows with its distance from the goal just before the winner passed it. All trials
        were measured until then, even those that were ended early. The value is the mean over
        goals."""
        if result.status == "failed":
            return None
        values = []
        for goal, best in zip(self.study.goals, first, strict=True):
            if best is not None and best[1] == result.key.index:
                values.append(math.log2(max(best[0], 1)))
                continue
            end = math.inf if best is None else best[0]
            curve = [value for step, value in result.shown[goal] if step < end]
            gap = shortfall(goal, curve[-1]) if curve else math.inf
            if result.status == "diverged" and result.steps < end:
                gap = math.inf
            behind = 1.0 if math.isinf(gap) else gap / (1 + gap)
            values.append(math.log2(self.study.budget_steps + 1) + behind)
        return sum(values) / len(values)

    def _gap(self, key: TrialKey) -> float:
        """How far from the last goal a trial ended, relative to the goal's bound."""
        result, goal = self._results.get(key), self.study.goals[-1]
        if result is None or not result.shown.get(goal):
            return math.inf
        return shortfall(goal, result.shown[goal][-1][1])
