"""The commands that make, stop and follow runs on a cluster that `ray up FILE` has started."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.options import DONE, FAILED, GOAL_UNREACHED, INTERRUPTED
from orchestrator.cli.terminal import command, complain, say
from orchestrator.files.own_code import UserFolder
from orchestrator.records import BadInput, MissingData

OF_THE_HEAD = ("Ray dashboard: ", "Report: ", "Schedules for your trainer")
"""Beginnings of lines that are of no use here: paths and addresses of the head."""

FATES = {"PENDING": "waiting", "SUCCEEDED": "done"}

if TYPE_CHECKING:
    from orchestrator.cluster.remote import Head
    from orchestrator.planning.sweep import Sweep


def sweep(
    file: Path,
    described: Sweep,
    out: str | None,
    data_dir: Path | None,
    track: list[str] | None,
    *,
    yes: bool,
    as_json: bool,
) -> int:
    _refuse_early(file, described, yes=yes)
    run = f"runs/{described.name}" if out is None else out
    asked = ["sweep", "sweep.yaml", "--out", _there(run), "--yes"]
    return _train(file, run, asked, described, _options(data_dir, track), as_json=as_json)


def resume(
    file: Path, run: str, data_dir: Path | None, track: list[str] | None, *, as_json: bool
) -> int:
    from orchestrator.planning.sweep_file import validated
    from orchestrator.results import RunFiles

    look(file, run)
    described = validated(RunFiles.open(run).sweep(), f"{run}/sweep.yaml")
    asked = ["resume", _there(run)]
    return _train(file, run, asked, described, _options(data_dir, track), as_json=as_json)


def _refuse_early(file: Path, described: Sweep, *, yes: bool) -> None:
    """Raises `BadInput` before a job is submitted, if the machines can't hold the trials, the sweep
    can't be trained, or the user does not agree to its size."""
    from orchestrator.cli.planning import agree, machines_of
    from orchestrator.planning.branch_plan import foreseen
    from orchestrator.planning.machines import fit_resources
    from orchestrator.planning.outlook import outlook
    from orchestrator.planning.studies import plan

    if (cluster := machines_of(file)) is not None:
        fit_resources(described.resources, cluster)
    found = None
    with suppress(MissingData):  # the data may be on the cluster
        planned = plan(described)
        for doubt in planned.doubts:
            say(doubt)
        found = outlook(foreseen(described, planned.studies), described.resources.ranks)
    agree(found, yes=yes)


def _train(
    file: Path,
    run: str,
    asked: Sequence[str],
    described: Sweep,
    options: Sequence[str],
    *,
    as_json: bool,
) -> int:
    """Follows the job that trains `run`. If there is none, first submits one that does what is
    asked, beside the sweep file and its code."""
    from orchestrator.analysis.branch_answer import answer_in
    from orchestrator.cli.answers import print_frontier
    from orchestrator.cli.sessions import print_branches
    from orchestrator.cluster.remote import follow
    from orchestrator.results import RunFiles, frontier_of
    from orchestrator.results.store import holds_branches

    def show(line: str) -> None:
        if not line.startswith(OF_THE_HEAD):
            say(line)

    say(f"Reaching the head of {file} ...")
    try:
        ended = follow(file, _job_of(file, run, asked, described, options), show)
    except KeyboardInterrupt:
        say(
            f"\nThe sweep goes on on the cluster. To see it: "
            f"{command('status', run, '--cluster', file)}. To end it: "
            f"{command('stop', run, '--cluster', file)}."
        )
        return INTERRUPTED
    code = FAILED if ended.driver_exit_code is None else ended.driver_exit_code
    if code not in {DONE, GOAL_UNREACHED, INTERRUPTED}:
        complain(f"The job {ended.submission_id} failed: {ended.message}")
        return code
    _fetch(file, run)
    here = RunFiles.open(run)
    if holds_branches(here):
        answer = answer_in(here)
        print_branches(answer, as_json)
        return code
    if code != INTERRUPTED:
        # Files of single trials that an earlier look fetched are in the files of studies now.
        here.in_parallel(lambda study: here.put_together(study.key, finished=True), here.studies())
    print_frontier(here, frontier_of(here), as_json)
    say(f"Report: {here.page}")
    return code


def _job_of(
    file: Path, run: str, asked: Sequence[str], described: Sweep, options: Sequence[str]
) -> Callable[[Head], str]:
    """Finds the job that trains `run`, or submits one."""
    import yaml

    from orchestrator.cluster.remote import is_running

    head_run = _there(run)
    text = yaml.safe_dump(described.resolved(), sort_keys=False)
    files = {"sweep.yaml": text.encode(), **UserFolder.here(described.code_names).code}
    known_by = repr((options, sorted(files.items()))).encode()
    digest = hashlib.blake2b(known_by, digest_size=8).hexdigest()

    def job_of(head: Head) -> str:
        say(
            f"Ray dashboard: http://{head.dashboard} "
            f"(`ray exec {file} 'ray get-auth-token'` prints its token)"
        )
        job = head.job(head_run)
        if job is None or not is_running(job):
            name = head.submit(head_run, [*asked, *options], files, digest)
            say(f"Submitted as the job {name}. It goes on if this terminal is closed.")
            return name
        if (job.metadata or {}).get("digest", digest) != digest:
            raise BadInput(
                f"{head_run} is being trained by the job {job.submission_id}, which was given "
                f"another sweep file, code or options. To see it: "
                f"{command('status', run, '--cluster', file)}. To train with yours, end it "
                f"({command('stop', run, '--cluster', file)}) and give this command again."
            )
        say(f"{head_run} is being trained already, by the job {job.submission_id}.")
        return str(job.submission_id)

    return job_of


def look(file: Path, run: str) -> None:
    """Prints the state of the job that trains `run`, and fetches the run's files."""
    from orchestrator.cluster.remote import reach

    with reach(file) as head:
        job = head.job(_there(run))
    if job is None:
        say(f"No job of this cluster trains {run}.")
    else:
        say(f"Job {job.submission_id}: {_fate(job.status.value, job.driver_exit_code)}.")
    _fetch(file, run)


def stop(file: Path, run: str) -> None:
    from orchestrator.cluster.remote import is_running, ray_command, reach, shell_words

    with reach(file) as head:
        job = head.job(_there(run))
    if not is_running(job):
        say(f"No job trains {_there(run)}.")
        return
    ray_command("exec", str(file), "orchestrate " + shell_words(["stop", _there(run)]))
    _fetch(file, run)
    say(f"Stopped. Go on with: {command('resume', run, '--cluster', file)}")


def _fate(status: str, code: int | None) -> str:
    """The state of a job in words. Ray counts every job whose exit code is not 0 as failed."""
    if code == GOAL_UNREACHED:
        return "done, with goals not reached"
    if code == INTERRUPTED:
        return "stopped"
    return FATES.get(status, status.lower())


def _there(run: str) -> str:
    """The folder of a run on the head; the address of a bucket stays as it is."""
    from orchestrator.cluster.remote import RUNS
    from orchestrator.files.places import refuse_keys

    refuse_keys(run)
    if "://" in run:
        return run
    path = Path(run).expanduser().resolve()
    # A run in another folder of this machine may have the same name.
    mark = hashlib.blake2b(bytes(path), digest_size=4).hexdigest()
    return f"{RUNS}/{path.name}-{mark}"


def _fetch(file: Path, run: str) -> None:
    from orchestrator.cluster.remote import fetch

    if "://" not in run:
        fetch(file, _there(run), Path(run).expanduser())


def _options(data_dir: Path | None, track: list[str] | None) -> list[str]:
    """The options of the job. --data-dir names a folder on the cluster's machines; one that this
    machine's environment names is not passed on."""
    options = [word for name in track or () for word in ("--track", name)]
    if data_dir is not None and str(data_dir) != os.environ.get("ORCHESTRATE_DATA"):
        options += ["--data-dir", str(data_dir)]
    return options
