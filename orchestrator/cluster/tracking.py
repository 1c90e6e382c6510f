"""Reports each trial to other trackers, once it is over for good, through Ray Tune's callbacks."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.teller import Teller
from orchestrator.files.places import Place
from orchestrator.records import BadInput, FinishedTrial, unknown
from orchestrator.results import Run
from orchestrator.search import Queue, Search

logger = logging.getLogger(__name__)

PACKAGES = {"mlflow": "mlflow", "tensorboard": "tensorboardX", "wandb": "wandb"}
ELSEWHERE = {"mlflow": "MLFLOW_TRACKING_URI", "wandb": "WANDB_DIR"}
"""Tracker -> the environment variable that says where it writes, if not into the run's folder."""

PATIENCE_SECONDS = 120.0
"""Seconds that a tracker may take for a trial once nothing else is waited for."""


def check_trackers(names: Iterable[str], place: Place) -> None:
    """Raises `BadInput` for trackers that a run at `place` can't use, before anything starts."""
    for name in names:
        if name not in PACKAGES:
            raise unknown("tracker", name, PACKAGES)
        spec = find_spec(PACKAGES[name])
        # A folder of that name that is no package, such as wandb makes, has no origin.
        if spec is None or spec.origin is None:
            raise BadInput(
                f"--track {name} needs the package {PACKAGES[name]}, which is not installed. "
                f"Install it: pip install 'orchestrate-batch-size[{name}]'"
            )
        variable = ELSEWHERE.get(name)
        if place.local is None and not (variable and os.environ.get(variable)):
            remedy = f"Set {variable}, or name" if variable else "Leave it out, or name"
            raise BadInput(
                f"--track {name} writes to a folder of this machine, but the run is {place}. "
                f"{remedy} a local folder with --out."
            )


class Trackers:
    """The trackers, as the driver uses them. It sends trials to them and waits for none before the
    end. A paused trial is reported when its end is known, perhaps in a later session."""

    def __init__(
        self,
        names: Iterable[str],
        run: Run,
        director: Queue,
        sweep: str,
        say: Callable[[str], None],
    ) -> None:
        self._searches, self._say = director.searches, say
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        teller = ray.remote(Teller).options(num_cpus=0, scheduling_strategy=here)
        settings = {k: v for k, v in os.environ.items() if k.startswith(("MLFLOW_", "WANDB_"))}
        self._tellers: dict[str, Any] = {
            name: teller.remote(name, Run(run.place.absolute()), sweep, os.getcwd(), settings)
            for name in dict.fromkeys(names)
        }
        self._waiting: dict[str, deque[tuple[Any, int]]] = {name: deque() for name in self._tellers}
        """Messages that are not answered yet, with the number of trials in each."""
        self._failures: Counter[str] = Counter()
        self._aside = {key: search.set_aside() for key, search in self._searches.items()}

    def hear(self, finished: FinishedTrial) -> None:
        """Reports a trial that ended, after the run and the director have it."""
        search = self._searches[finished.trial.study.key]
        key = finished.trial.key
        if search.over(key):
            self._aside[search.study.key].discard(key)
            self._tell("tell", finished, trials=1)
        else:
            self._aside[search.study.key].add(key)
        if search.done:
            self._catch_up(search)

    def close(self) -> None:
        for search in self._searches.values():
            self._catch_up(search)
        for name, waiting in self._waiting.items():
            if waiting and not self._look(name, seconds=1):
                left = sum(trials for _, trials in waiting)
                self._say(f"Waiting until {name} has received the last {left} trials.")
            while self._look(name, seconds=PATIENCE_SECONDS):
                pass
            if waiting or self._failures[name]:
                self._say(
                    f"{name} did not receive all trials. The run has them all; log.txt says why."
                )
            if waiting:
                logger.warning("%s takes too long, so no more trials are sent to it", name)
            ray.kill(self._tellers[name])

    def _catch_up(self, search: Search) -> None:
        """Reports the paused trials that won't go on."""
        aside = self._aside[search.study.key]
        over = {key for key in aside if search.over(key)}
        aside -= over
        if over:
            self._tell("tell_stored", search.study, over, trials=len(over))

    def _tell(self, method: str, *what: Any, trials: int) -> None:
        for name, teller in self._tellers.items():
            self._waiting[name].append((getattr(teller, method).remote(*what), trials))
            while self._look(name, seconds=0):
                pass

    def _look(self, name: str, *, seconds: float) -> bool:
        """Takes note of the result of the oldest message, if it arrives within `seconds`. Returns
        whether it did."""
        waiting = self._waiting[name]
        if not waiting or not ray.wait([waiting[0][0]], timeout=seconds * waiting[0][1])[0]:
            return False
        try:
            ray.get(waiting.popleft()[0])
        except Exception as error:
            self._failures[name] += 1
            if self._failures[name] == 1:
                # An address may have a password in it.
                last = (str(error).strip() or repr(error)).splitlines()[-1]
                reason = re.sub(r"://[^/@\s]*@", "://", last)
                logger.warning("the sweep goes on, but %s missed a trial: %s", name, reason)
        return True
