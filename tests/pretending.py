"""An executor that trains nothing. It plays the curves of a world (see test_race.py) on machines
that crash, hang, are lost and repeat themselves, by a clock that it sets itself."""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from test_race import World, train

from orchestrator.planning.sweep import Faults, Resources
from orchestrator.records import FinishedTrial, Measurement, Outcome, StudyKey, Trial, TrialKey
from orchestrator.search import Bounds, Director, PackRace, Proposal
from orchestrator.sweeping.dispatch import Dispatcher
from orchestrator.sweeping.executor import Executor, Failure, Listener, News, Pack
from orchestrator.sweeping.progress import Progress

STEP_SECONDS = 1.0
"""Seconds that pass whenever the dispatcher waits for news."""

DIED = Failure(text="the process died", died=True, machine_lost=False)
LOST = Failure(text="the node died", died=True, machine_lost=True)
RAISED = Failure(text="ArithmeticError: no loss", died=False, machine_lost=False)


class Killed(BaseException):
    """The whole process is killed at this point."""


class Disk:
    """The part of a run that a dispatcher uses. It holds what survives a kill."""

    place = "the run"

    def __init__(self) -> None:
        self.held: dict[TrialKey, FinishedTrial] = {}
        self.writes: list[int] = []
        """Numbers of trials that were written together."""
        self.full: Callable[[], bool] = lambda: False
        self.after_write: Callable[[], None] = lambda: None
        self.sessions: list[Any] = []
        self.times: dict[tuple[StudyKey, int], float] = {}

    def write(self, *group: FinishedTrial) -> None:
        assert len({(f.trial.study.key, f.trial.repeat > 0) for f in group}) == 1
        assert len({f.trial.key for f in group}) == len(group)
        if self.full():
            raise OSError(28, "No space left on device")
        for finished in group:
            before = self.held.get(finished.trial.key)
            again = before is None or before.outcome.status in ("failed", "paused", "dominated")
            assert again, "a trial that had ended for good was trained again"
            self.held[finished.trial.key] = finished
        self.writes.append(len(group))
        self.after_write()

    def timed(self) -> dict[tuple[StudyKey, int], float]:
        return {}

    def write_timed(self, timed: dict[tuple[StudyKey, int], float]) -> None:
        self.times = dict(timed)

    def in_parallel(self, work: Any, items: Any) -> list[int]:
        return [0 for _ in items]

    loose = None

    def add_session(self, session: Any) -> None:
        self.sessions.append(session)


@dataclass(frozen=True)
class Luck:
    """How often what goes wrong, per second of a running pack."""

    dies: float = 0.0
    lost: float = 0.0
    hangs: float = 0.0
    twice: float = 0.0
    """How often news is told a second time, then or later."""
    faults: int = 1_000_000
    """Largest number of crashes, losses and hangs."""


@dataclass
class _Running:
    pack: Pack
    training: Iterator[News]
    hangs: bool = False


@dataclass
class Pretended(Executor):
    world: World
    disk: Disk
    luck: Luck = Luck()
    seed: int = 0
    ranks: int = 2
    width: int = 1
    raises: Callable[[Trial, int], bool] = lambda trial, width: False
    """Whether the code of a trial raises in a stack of so many slots."""
    kills: Collection[int] = ()
    """Numbers of the waits at which the whole process is killed."""
    now: float = 0.0
    waits: int = 0
    resources: Resources = field(default_factory=Resources)
    data_dir = None
    packs: list[Pack] = field(default_factory=list)
    ended_from_outside: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance, self.faults = random.Random(self.seed), self.luck.faults
        self.waiting: list[Pack] = []
        self.running: dict[int, _Running] = {}
        self.told: list[News] = []
        self.board: dict[StudyKey, Bounds] = {}
        self.steps: set[int] = set()
        self.through: set[tuple[int, TrialKey]] = set()
        """Serial numbers of packs, and trials that have ended there."""

    def clock(self) -> float:
        return self.now

    @property
    def has_room(self) -> bool:
        return len(self.waiting) < 2

    def start(self, pack: Pack) -> None:
        out = {(each.serial, p.trial.key) for each in self.out() for p in each.proposals}
        assert len({p.trial.kind for p in pack.proposals}) == 1
        again = {p.trial.key for p in pack.proposals} & {key for _, key in out - self.through}
        assert not again, "the same trial twice at once"
        self.waiting.append(pack)
        self.packs.append(pack)

    def out(self) -> list[Pack]:
        return [*self.waiting, *(running.pack for running in self.running.values())]

    def wait(self) -> list[News]:
        self.now += STEP_SECONDS
        self.waits += 1
        assert self.waits < 5_000, "it does not come to an end"
        if self.waits in self.kills:
            raise Killed
        news: list[News] = []
        while self.waiting and len(self.running) < self.ranks:
            pack = self.waiting.pop(0)
            self.running[pack.serial] = _Running(pack, self._train(pack))
            news.append(News(serial=pack.serial, started=True))
        for serial, running in [*self.running.items()]:
            news += self._second(serial, running)
        self.told += news
        if self.told and self.chance.random() < self.luck.twice:
            news.append(self.chance.choice(self.told))
        return news

    def _second(self, serial: int, running: _Running) -> list[News]:
        """What a pack has done within a second."""
        failure = next(
            (
                failure
                for failure, often in ((DIED, self.luck.dies), (LOST, self.luck.lost))
                if self._goes_wrong(often)
            ),
            None,
        )
        if failure is not None:
            return [self._fail(serial, failure)]
        running.hangs = running.hangs or self._goes_wrong(self.luck.hangs)
        if running.hangs and serial not in self.ended_from_outside:
            return []
        self.steps.add(serial)
        news = next(running.training)
        if news.done or news.failure:
            del self.running[serial]
        return [news]

    def _goes_wrong(self, often: float) -> bool:
        wrong = self.faults > 0 and self.chance.random() < often
        self.faults -= wrong
        return wrong

    def _fail(self, serial: int, failure: Failure) -> News:
        del self.running[serial]
        return News(serial=serial, failure=failure)

    def _train(self, pack: Pack) -> Iterator[News]:
        if pack.to_time:
            yield News(serial=pack.serial, timed=abs(pack.serial - 1.5))
        race = PackRace(pack.study, lambda: self.board.get(pack.study.key))
        coming = iter(pack.proposals)
        slots: list[Iterator[Measurement | FinishedTrial]] = []
        while True:
            begun = []
            while len(slots) < pack.width and (proposal := next(coming, None)) is not None:
                slots.append(self._trial(proposal, race, pack.width))
                begun.append(proposal.trial.key)
            if not slots:
                yield News(serial=pack.serial, done=True)
                return
            ended = []
            for slot in [*slots]:
                try:
                    event = next(slot)
                except ArithmeticError:
                    yield News(serial=pack.serial, begun=begun, ended=ended, failure=RAISED)
                    return
                if isinstance(event, FinishedTrial):
                    race.record(event)
                    ended.append(event)
                    self.through.add((pack.serial, event.trial.key))
                    slots.remove(slot)
            yield News(serial=pack.serial, begun=begun, ended=ended)

    def _trial(
        self, proposal: Proposal, race: PackRace, width: int
    ) -> Iterator[Measurement | FinishedTrial]:
        trial, measured = proposal.trial, list[Measurement]()
        training = train(
            trial,
            self.world.curve(trial),
            cut=lambda unmet, upcoming: race.ending(proposal, unmet, upcoming),
        )
        while True:
            if self.raises(trial, width) and len(measured) == 1:
                raise ArithmeticError
            try:
                measured.append(next(training))
            except StopIteration as end:
                outcome = Outcome(status=end.value, steps=measured[-1].step, seconds=0.0)
                yield FinishedTrial(trial=trial, outcome=outcome, measurements=tuple(measured))
                return
            yield measured[-1]

    def post(self, key: StudyKey, bounds: Bounds) -> None:
        leaders = {index for ranking in bounds for _, index in ranking}
        stored = {held.index for held in self.disk.held if held.study == key}
        assert leaders <= stored, "others are ended because of a trial that may be lost"
        self.board[key] = bounds

    def moved(self) -> Collection[int] | None:
        moved, self.steps = self.steps, set()
        return moved

    def end(self, serial: int) -> None:
        self.ended_from_outside.append(serial)
        self.running[serial].training = iter([News(serial=serial, failure=DIED)])

    def why_idle(self) -> str:
        return "The machines are asleep."


def session(
    executor: Pretended,
    *,
    faults: Faults | None = None,
    listeners: Sequence[Listener] = (),
    asked_to_end: Callable[[], bool] = lambda: False,
) -> tuple[Director, Progress, bool]:
    """Trains what the disk does not hold, as a command would. Returns the director, the progress,
    and whether all is trained."""
    studies = executor.world.studies
    director = Director(studies, sweep_seed=7)
    held = [*executor.disk.held.values()]
    random.Random(executor.seed).shuffle(held)
    for finished in held:
        if finished.outcome.status != "failed":
            director.load(finished)
    director.begin()
    progress, widths = Progress(studies), {study.key: executor.width for study in studies}
    done = Dispatcher(
        executor.disk, director, executor, widths, faults or Faults(hang_seconds=20),
        progress=progress, listeners=listeners, asked_to_end=asked_to_end, clock=executor.clock,
    ).train()  # fmt: skip
    return director, progress, done
