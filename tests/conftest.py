"""Fixtures and functions that all tests share: trials of any kind, sweep files, and the command as
users call it."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import make_data
import pytest
import torch
import warm
import yaml
from hypothesis import HealthCheck, settings
from pyarrow import fs
from serving import serve
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.planning.studies import Plan, plan
from orchestrator.planning.sweep import Sweep
from orchestrator.records import (
    BadInput,
    EvaluationGrid,
    FinishedTrial,
    Goal,
    Measurement,
    Outcome,
    Status,
    Study,
    Trial,
    TrialKey,
)
from orchestrator.results import RunFiles
from orchestrator.search import AnySearch, Director, Proposal, Queue
from orchestrator.sweeping.executor import Job
from orchestrator.sweeping.local import in_this_process
from orchestrator.sweeping.progress import Progress
from orchestrator.sweeping.session import dispatcher_of, queue_of
from orchestrator.training import Ranks, train
from orchestrator.training.memory import forget_peak, peak
from orchestrator.training.ranks import launch_ranks, one_thread
from orchestrator.training.same_bits import ask_for_same_bits

TINY = {
    "name": "tiny",
    "workloads": ["digits/mlp"],
    "goals": ["val/error < 0.5"],
    "recipes": ["sgd"],
    "batch_sizes": [64, 256],
    "search": {"trials": 3},
    "budget": {"steps": 60},
}


ROOT = Path(__file__).parent.parent

ask_for_same_bits()

# Ray reads it once, when it is imported, which some tests do before they start it.
os.environ.setdefault("RAY_AUTH_MODE", "token")

# Few tests look at Ray's dashboard, which takes a fifth of the time of a short sweep.
os.environ.setdefault("ORCHESTRATE_DASHBOARD", "0")

# Ray lets its workers give way to all other processes, such as tests beside this one.
os.environ.setdefault("RAY_worker_niceness", "0")

# Examples take as long as the machine needs.
too_slow = [HealthCheck.too_slow]
settings.register_profile("patient", deadline=None, suppress_health_check=too_slow)
settings.load_profile("patient")

# Workers of pytest have few columns, in which tables wrap.
os.environ.pop("COLUMNS", None)

LONGEST = {
    "test_siege", "test_sweep_end_to_end", "test_workloads", "test_stack", "test_program_faults",
    "test_race", "test_outside",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the longest tests first. If several run at a time, no process then waits for a long test
    at the end."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--series", type=int, default=1, help="Random series of kills in test_siege.py."
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "series" in metafunc.fixturenames:
        metafunc.parametrize("series", range(metafunc.config.getoption("series")))


@pytest.fixture(autouse=True)
def on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


def make_trial(workload: str = "digits/mlp", **changes: Any) -> Trial:
    """A trial of 100 steps of SGD; any field of the trial or its study can be given."""
    settings: dict[str, Any] = {
        "workload": workload,
        "recipe": "test",
        "optimizer": "sgd",
        "batch_size": 32,
        "goals": (),
        "budget_steps": 100,
        "grid": EvaluationGrid(spacing=0.05, min_gap=1),
        "space": {},
        "trials": 1,
        "params": {"learning_rate": 0.1},
        "seed": 1,
        "index": 0,
        **changes,
    }
    own = {name: settings.pop(name) for name in ("params", "seed", "index")}
    settings["goals"] = tuple(Goal.parse(str(goal)) for goal in settings["goals"])
    return Trial(study=Study(**settings), **own)


def ended(
    trial: Trial, status: Status, shown: Mapping[int, float] | None = None, **outcome: Any
) -> FinishedTrial:
    """A trial that showed these values of `val/error` at these steps, and ended at the last."""
    shown = shown or {}
    settings: dict[str, Any] = {"steps": max(shown, default=0), "seconds": 1.0, **outcome}
    return FinishedTrial(
        trial=trial,
        outcome=Outcome(status=status, **settings),
        measurements=tuple(
            Measurement(step=step, seconds=step / 10, metrics={"val/error": value})
            for step, value in shown.items()
        ),
    )


def run_trial(trial: Trial, **options: Any) -> tuple[list[Measurement], Outcome]:
    """Trains a trial in this process."""
    return exhaust(train(trial, Ranks(), **options))


def following(queue: Queue) -> Proposal | None:
    """The trial to start next, alone; None if no trial waits."""
    return next(iter(queue.next_pack(lambda study, waiting: 1)), None)


def first_trials(study: Study, sweep_seed: int) -> list[Trial]:
    """The first round of a study, in order of index."""
    director = Director([study], sweep_seed)
    director.begin()
    trials = []
    while (proposal := following(director)) is not None:
        trials.append(proposal.trial)
    return sorted(trials, key=lambda trial: trial.index)


def train_all(
    run: RunFiles,
    planned: Plan,
    *,
    progress: Progress | None = None,
    asked_to_end: Callable[[], bool] = lambda: False,
) -> int:
    """Trains what the run is missing in this process, as `--no-ray` does. Returns the number of
    trials that were trained."""
    progress = progress or Progress(planned.studies)
    queue = queue_of(run, planned, progress)
    told: set[TrialKey] = set()  # a trial that is paused and goes on counts once

    def tell(finished: FinishedTrial, search: AnySearch) -> None:
        told.add(finished.trial.key)

    job = Job(run=run, sweep=planned.sweep, studies=planned.studies, asked_to_end=asked_to_end)
    with in_this_process(job) as executor:
        done = dispatcher_of(
            run, queue, planned.sweep, executor, progress,
            listeners=[tell], asked_to_end=asked_to_end,
        ).train()  # fmt: skip
    assert done or asked_to_end()
    assert executor.has_room  # no training is left for later
    return len(told)


def made(path: Path, sweep: Sweep) -> tuple[RunFiles, Plan]:
    """A run of the sweep in which nothing is trained yet."""
    planned, run = plan(sweep), RunFiles(path)
    run.create(planned.sweep.resolved(), planned.studies, {})
    return run, planned


NOBODY = 65534


def by_nobody(work: Callable[[], Any]) -> Any:
    """What `work` returns to another user of the machine, or why it is refused."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            try:
                found = work()
            except BadInput as error:
                found = f"{error.code}: {error}"
            with os.fdopen(writing, "w") as pipe:
                json.dump(found, pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said)


def exhaust(training: Any) -> tuple[list[Measurement], Any]:
    """Returns everything that a generator yields, and its return value."""
    measurements = []
    while True:
        try:
            measurements.append(next(training))
        except StopIteration as end:
            return measurements, end.value


@pytest.fixture(scope="module")
def train_on_pair() -> Iterator[Callable[..., tuple[list[Measurement], Outcome]]]:
    """Returns `run_trial` on two ranks, which stay up for many trials. The waiting rank gives up
    after half an hour without a trial."""
    with launch_ranks(2, serve) as (ranks, _):

        def run(trial: Trial, **options: Any) -> tuple[list[Measurement], Outcome]:
            ranks.from_first((trial, options))
            return exhaust(train(trial, ranks, **options))

        yield run
        ranks.from_first(None)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small copy of every data set, in its real format."""
    folder = tmp_path_factory.mktemp("data")
    make_data.main(folder)
    return folder


@pytest.fixture
def sweep_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the tiny sweep with changes; a change to None removes the key."""

    def write(**changes: Any) -> Path:
        document = {k: v for k, v in {**TINY, **changes}.items() if v is not None}
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return write


@contextmanager
def bounded(*, seconds: float = 10, megabytes: float = 500) -> Iterator[None]:
    """Checks that the code within the context takes no more processor time, and makes this process
    grow by no more memory, than given."""
    cpu = torch.device("cpu")
    forget_peak(cpu)
    began, before = time.process_time(), peak(cpu) or 0
    yield
    assert time.process_time() - began < seconds
    assert (peak(cpu) or 0) - before < megabytes * 2**20


@contextmanager
def refused(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[BadInput]]:
    """Checks that the code within the context raises `BadInput` with this code, and that its
    message shows each of the values: what was given, its place, a bound, a known name. Never prose,
    which may be improved."""
    with pytest.raises(BadInput) as refusal:
        yield refusal
    assert refusal.value.code == code, refusal.value
    assert not_shown(str(refusal.value), values) == []


def assert_refused(result: subprocess.CompletedProcess[str], code: str, *values: object) -> None:
    """Checks the same of a command that ran in a process."""
    assert result.returncode == 2, result.stderr
    assert f"error[{code}]: " in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    assert not_shown(result.stderr, values) == []


def not_shown(message: str, values: Iterable[object]) -> list[str]:
    """The values, as whole words, that the message lacks."""
    words = {str(value): rf"(?<!\w){re.escape(str(value))}(?!\w)" for value in values}
    return [value for value, pattern in words.items() if not re.search(pattern, message)]


def orchestrate(
    *arguments: object, cwd: Path | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user does, in a separate process."""
    if options:
        return subprocess.run(
            command(*arguments),
            capture_output=True, text=True, timeout=900, check=False, cwd=cwd, **options,
        )  # fmt: skip
    return warm.orchestrate([str(argument) for argument in arguments], cwd or Path.cwd())


def called(*arguments: object) -> str:
    """What a command prints that works, run in this process. What it refuses is raised."""
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def invoked(*arguments: object) -> tuple[int, str]:
    """The exit code of a command, run in this process, and all that it prints."""
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    return result.exit_code, result.output


def command(*arguments: object) -> list[str]:
    return [os.path.join(os.path.dirname(sys.executable), "orchestrate"), *map(str, arguments)]


def files_of_repository() -> list[Path]:
    """The files that are or could be committed, relative to its root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(name) for name in listed.stdout.split("\0") if name]


def wait_for(
    condition: Callable[[], Any],
    process: subprocess.Popen[Any] | None = None,
    log: Path = Path(os.devnull),
) -> Any:
    """Waits until the condition holds, and returns its value. Fails if the process ends before
    that."""
    until = time.monotonic() + 600
    while not (answer := condition()):
        over = process is not None and process.poll() is not None
        assert not over, f"ended early, with {process.returncode}: {log.read_text()}"
        assert time.monotonic() < until, f"waited in vain: {log.read_text()}"
        time.sleep(0.01)
    return answer


STORE = """
import threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="session")
def store() -> Iterator[str]:
    """Returns the address of a server on this machine that speaks S3."""
    with subprocess.Popen(
        [sys.executable, "-c", STORE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


@pytest.fixture
def bucket(store: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Makes a new bucket. Environment variables tell where it is and how to open it."""
    for name, value in {
        "AWS_ENDPOINT_URL": store,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    name = re.sub("[^a-z]+", "-", request.node.name).strip("-")[:60].strip("-")
    files, path = fs.FileSystem.from_uri(f"s3://{name}?allow_bucket_creation=true")
    files.create_dir(path)
    return f"s3://{name}"
