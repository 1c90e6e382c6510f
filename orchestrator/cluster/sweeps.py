"""Trains sweeps on Ray: joins a cluster or starts one here, and opens its executor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orchestrator.cluster.connect import connect
from orchestrator.cluster.ray_death import MOST_DEATHS, begin_anew, death_before
from orchestrator.cluster.tune_executor import on_ray
from orchestrator.planning.machines import Cluster
from orchestrator.planning.studies import Plan
from orchestrator.planning.sweep import Sweep
from orchestrator.records import Study, SweepFailed
from orchestrator.results import RunFiles
from orchestrator.sweeping.executor import Executor, Job
from orchestrator.sweeping.interrupts import to_go_on
from orchestrator.sweeping.progress import Progress
from orchestrator.sweeping.session import OpensExecutor, dispatcher_of, queue_of


def ray_at(address: str | None, say: Callable[[str], None]) -> OpensExecutor:
    """Trains on the cluster at `address`, or on one that is started on this machine. If that Ray
    dies, the same command is begun anew."""

    @contextmanager
    def opened(job: Job) -> Iterator[Executor]:
        def died(reason: str) -> None:
            begin_anew(reason, asked_to_end=job.asked_to_end())

        if (death := death_before()) is not None:
            if death.asked_to_end:
                if death.to_go_on:
                    to_go_on.set()
                raise KeyboardInterrupt
            if death.count > MOST_DEATHS:
                raise SweepFailed(f"{death.reason} It was started anew {MOST_DEATHS} times before.")
            say(
                f"{death.reason} Ray is started anew (restart {death.count} of at most "
                f"{MOST_DEATHS})."
            )
        with job.run.log() as log, connect(address, log, died, say) as cluster:
            if cluster.dashboard:
                own = "RAY_AUTH_TOKEN" in os.environ  # what another shell doesn't have
                token = "RAY_AUTH_TOKEN is" if own else "`ray get-auth-token` prints"
                say(f"Ray dashboard: http://{cluster.dashboard} ({token} its token)")
            with on_ray(cluster, job) as executor:
                yield executor

    return opened


def train_apart(
    run: RunFiles,
    sweep: Sweep,
    studies: Sequence[Study],
    cluster: Cluster,
    *,
    progress: Progress | None = None,
    data_dir: Path | None = None,
) -> bool:
    """Trains studies in a new run of their own, on a cluster that this process has joined. Returns
    whether all were trained."""
    run.create(sweep.resolved(), studies, {})
    progress = Progress(studies) if progress is None else progress
    queue = queue_of(run, Plan(sweep=sweep, studies=tuple(studies)), progress)
    job = Job(run=run, sweep=sweep, studies=studies, data_dir=data_dir)
    with on_ray(cluster, job) as executor:
        return dispatcher_of(run, queue, sweep, executor, progress).train()
