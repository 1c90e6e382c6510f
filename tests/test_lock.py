"""Where other users may put things, the lock of a run leads nowhere and signals nobody."""

import fcntl
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import NOBODY, by_nobody, ended, make_trial, refused

from orchestrator.cli import runs
from orchestrator.files.places import Place
from orchestrator.results import RunFiles

HOST = socket.gethostname()
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that everybody can write to, as /tmp is. Nobody waits for processes to end."""
    time = SimpleNamespace(sleep=lambda seconds: None)
    monkeypatch.setattr("orchestrator.results.lock.time", time)
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def in_bucket(shared: Path, monkeypatch: pytest.MonkeyPatch) -> RunFiles:
    """Its lock is below the temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    return RunFiles(Place("gs://lab/run"))


def lock(run: RunFiles) -> str:
    with run.locked():
        return "locked"


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to, lambda at, _: os.mkfifo(at)])
def test_a_planted_lock_file_is_refused_and_left_alone(
    plant: Callable[[Path, Path], None], shared: Path
) -> None:
    victim = shared / "victim"
    victim.write_text("precious")
    plant(shared / ".lock", victim)
    for use in (lock, RunFiles.writer):
        with refused("unsafe-lock", shared, "link"):
            use(RunFiles(shared))
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("planted", ["link", "open to others", "file"])
def test_the_lock_of_a_bucket_lies_in_a_private_folder(
    planted: str, in_bucket: RunFiles, shared: Path
) -> None:
    folder = shared / f"orchestrate-{os.getuid()}"
    if planted == "link":
        (shared / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(shared / "elsewhere")
    elif planted == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with refused("unsafe-lock", folder, "0700"):
        lock(in_bucket)
    assert sorted(path.name for path in shared.rglob("*") if path != folder) in ([], ["elsewhere"])


def test_the_lock_of_a_bucket_holds(in_bucket: RunFiles, shared: Path) -> None:
    assert in_bucket.writer() is None
    with in_bucket.locked():
        assert in_bucket.writer() == os.getpid()
        with refused("lock-held", in_bucket.place, f"process {os.getpid()}"):
            lock(in_bucket)
    assert in_bucket.writer() is None
    assert (shared / f"orchestrate-{os.getuid()}").stat().st_mode & 0o777 == 0o700


def test_a_process_that_is_just_ending_writes_no_more(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = os.open(shared / ".lock", os.O_RDWR | os.O_CREAT)
    os.write(lock, f"process {2**22 + 1} on {socket.gethostname()}\n".encode())
    fcntl.flock(lock, fcntl.LOCK_EX)
    waits = itertools.count(1)  # it ends during the fortieth
    time = SimpleNamespace(sleep=lambda seconds: next(waits) == 40 and os.close(lock))
    monkeypatch.setattr("orchestrator.results.lock.time", time)
    assert RunFiles(shared).writer() is None


@as_root
def test_the_folder_of_another_user_is_refused(in_bucket: RunFiles, shared: Path) -> None:
    folder = shared / f"orchestrate-{os.getuid()}"
    by_nobody(lambda: folder.mkdir(mode=0o700))
    with refused("unsafe-lock", folder):
        lock(in_bucket)
    assert [*folder.iterdir()] == []


@as_root
def test_where_nothing_can_be_written_the_lock_is_refused(shared: Path) -> None:
    assert by_nobody(lambda: lock(RunFiles(shared))) == "locked"
    (shared / ".lock").unlink()
    shared.chmod(0o755)
    said = by_nobody(lambda: lock(RunFiles(shared)))
    assert said.startswith("unsafe-lock: ")
    assert f"{shared} " in said
    assert "Permission denied" in said
    (shared / ".lock").touch(mode=0o600)
    assert by_nobody(RunFiles(shared).writer).startswith("unsafe-lock: ")


NONSENSE = ["0", "1", "-1", "x", "99999999999999999999", "\x1b[31m", str(os.getppid())]


@pytest.mark.parametrize("process", NONSENSE)
def test_nobody_is_signalled_for_what_a_lock_file_says(process: str, shared: Path) -> None:
    """The process of the tests holds the lock, and is not what it names."""
    (shared / "sweep.yaml").write_text("name: x")
    (shared / ".lock").write_text(f"process {process} on {HOST}\n")
    with (shared / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with refused("not-yours", shared) as refusal:
            RunFiles(shared).writer()
    assert "\x1b" not in str(refusal.value)


@as_root
def test_another_user_names_no_process_to_stop(shared: Path) -> None:
    (shared / ".lock").write_text(f"process {os.getpid()} on {HOST}\n")
    with (shared / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert RunFiles(shared).writer() == os.getpid()
        os.chown(shared / ".lock", NOBODY, NOBODY)
        with refused("not-yours", shared):
            RunFiles(shared).writer()
        os.chown(shared / ".lock", 0, 0)
        with subprocess.Popen(["sleep", "60"], user=NOBODY, pass_fds=[file.fileno()]) as other:
            (shared / ".lock").write_text(f"process {other.pid} on {HOST}\n")
            with refused("not-yours", shared, f"process {other.pid}"):
                RunFiles(shared).writer()
            other.kill()
    assert RunFiles(shared).writer() is None


def test_a_sweep_of_another_machine_is_stopped_there(shared: Path) -> None:
    (shared / ".lock").write_text("process 5 on elsewhere\n")
    (shared / "sweep.yaml").touch()
    with refused("not-yours", "process 5 on elsewhere", shared):
        runs.stop(str(shared))


def test_a_run_that_takes_the_place_of_a_locked_one_gets_none_of_its_trials(tmp_path: Path) -> None:
    first, second = (RunFiles(tmp_path / "run") for _ in range(2))
    (tmp_path / "run").mkdir()
    finished = ended(make_trial(), "reached", {10: 0.1})
    with first.locked():
        (tmp_path / "run").rename(tmp_path / "moved")
        with pytest.raises(OSError, match="moved, removed or replaced"):
            first.write(finished)
        (tmp_path / "run").mkdir()
        with second.locked(), pytest.raises(OSError, match="moved, removed or replaced"):
            first.write(finished)
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "moved").rename(tmp_path / "run")
        first.write(finished)
    assert first.trials(finished.trial.study.key)["trial"].to_pylist() == [0]
