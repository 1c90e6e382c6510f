"""Whatever a program does, one sentence says it, and nothing of the program is left."""

import json
import math
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import make_trial, wait_for
from driving import children

from orchestrator.files.places import Place
from orchestrator.programs import starting, trials
from orchestrator.programs.hearing import Events, Lines, ProgramFailed
from orchestrator.programs.keeper import LOG_BYTES, Log
from orchestrator.programs.starting import Devices, Kept, Start
from orchestrator.programs.trials import Event, train_program
from orchestrator.records import MANY, EvaluationGrid, FinishedTrial, Goal, Heard, Program, Trial

pytestmark = pytest.mark.dear

PYTHON = (sys.executable, "-I", "-S")

TELLS = """
import json, os, signal, sys, time
where, stop = os.environ["ORCHESTRATE_REPORTS"], os.environ["ORCHESTRATE_STOP"]
rank = int(os.environ.get("RANK", 0))

def tell(step, **metrics):
    with open(where, "a") as file:
        file.write(json.dumps({"step": step, "time": time.time(), **metrics}) + "\\n")
    return not os.path.exists(stop)

def wait_for(file):
    while not os.path.exists(file):
        time.sleep(0.002)

"""
"""Like `report`, without its imports."""

IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"

FOR_EVER = "while True: time.sleep(100)\n"

REACHES = "tell(1, loss=0.1)\n"

PRINTS = "print('step 1 loss 5', flush=True)\n"

HEEDED = """
print("there", flush=True)
while not os.path.getsize(os.path.join(os.path.dirname(where), "output-0.txt")):
    time.sleep(0.002)
"""
"""Waits until its keeper hears it, and so heeds signals."""

PRINTED = Heard(source="stdout", pattern=r"step (?P<step>\d+) loss (?P<loss>\S+)")


def program(code: str, tells: str = TELLS, **more: Any) -> Program:
    return Program(command=(*PYTHON, "-c", tells + code), **more)


def trial_of(program: Program, **changes: Any) -> Trial:
    grid = EvaluationGrid(spacing=0, min_gap=program.every or 1)
    return make_trial(
        "mine", **{"program": program, "goals": ("loss < 1",), "grid": grid, **changes}
    )


def kept(start: Start, **changes: Any) -> Kept:
    return Kept(replace(start, **changes))


IMPATIENT = partial(kept, patience=0.2)


def events_of(
    folder: Path, trial: Trial, devices: Devices, ending: Any = None
) -> Generator[Event, None, None]:
    log = Place(str(folder / "log.txt"))
    return train_program(trial, devices, folder / "trials", log=log, ending=ending)


def train(
    folder: Path, trial: Trial, ending: Any = None, devices: Devices | None = None
) -> FinishedTrial:
    """Trains it, and checks that its folder is gone."""
    devices = devices or Devices(starts=(IMPATIENT,))
    events = [*events_of(folder, trial, devices, ending)]
    ended = events[-1][1]
    assert isinstance(ended, FinishedTrial)
    assert [each for _, each in events[:-1] if each] == [*ended.measurements]
    assert not [*(folder / "trials").iterdir()]
    return ended


def losses(finished: FinishedTrial) -> list[tuple[int, float]]:
    return [(each.step, each.metrics["loss"]) for each in finished.measurements]


def marked(mark: str) -> dict[int, str]:
    """The processes that have this mark in their environment, and their commands."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_text()
    return found


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks all processes that a test starts, and checks that none is left."""
    found, before = uuid.uuid4().hex, children()
    monkeypatch.setenv("MARK_OF_TEST", found)
    monkeypatch.setattr(trials, "PATIENCE", 0.2)
    yield found
    assert marked(found) == {}
    assert children() <= before


@pytest.mark.parametrize(
    ("code", "died", "said"),
    [
        ("", False, trials.UNHEARD["report"]),
        ("print('a hint')", False, "a hint\nthe program ended without a report. It must"),
        ("tell(1, loss=5)\nsys.exit('no data')", False, "the program ended with code 1\nno data"),
        ("os.kill(os.getpid(), signal.SIGKILL)", True, "the program ended by signal 9"),
        (  # as on a machine that is taken away, where it saves its state
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\ntell(1, loss=5)\n"
            + HEEDED
            + "os.kill(os.getppid(), signal.SIGTERM)\n"
            + FOR_EVER,
            True,
            "the program ended by signal 15",
        ),
        ("tell(2000, loss=0.1)", False, "its first report was that of step 2,000, after its"),
        ("tell(1, los=0.1)", False, "Unknown metric 'loss'. Did you mean 'los'?"),
        (
            "tell(1, loss=5)\nopen(where, 'a').write('{\"step\": 2, \"lo')",
            False,
            'a line of JSON such as {"step": 100, "loss": 2.5}, but is \'{"step"',
        ),
        ("open(where, 'a').write('[' * 10**5 + '\\n')", False, "a report must be a line of JSON"),
        ("open(where, 'a').write('x' * 10**7)", False, "a report is longer than 1,000,000 bytes"),
        ("os.mkdir(where)", False, "its reports can't be read: "),
        ("tell(1, **{str(n): n for n in range(2000)})", False, "more than 1,000 different metrics"),
    ],
)  # fmt: skip
def test_a_sentence_says_why_a_program_can_not_train_a_trial(
    code: str, died: bool, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ProgramFailed) as failure:
        train(tmp_path, trial_of(program(code)))
    assert said in str(failure.value)
    assert failure.value.died == died
    assert len(str(failure.value)) < 2_000
    assert not [*(tmp_path / "trials").iterdir()]


def test_a_command_that_is_not_found_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match=r"code 127\nno/such: No such file or directory"):
        train(tmp_path, trial_of(Program(command=("no/such",))))


@pytest.mark.parametrize(
    ("code", "status", "heard"),
    [
        ("tell(1, loss=5)", "exhausted", [(1, 5)]),
        ("tell(1, loss=5)\n" + REACHES.replace("1", "2", 1), "reached", [(1, 5), (2, 0.1)]),
        ("tell(1, loss=float('nan'))\n" + FOR_EVER, "diverged", None),
        ("tell(1, loss=10**400)\n" + FOR_EVER, "diverged", None),
        ("tell(1, loss=5)\ntell(101, loss=0.1)\n" + FOR_EVER, "exhausted", [(1, 5)]),
        ("tell(100, loss=5)\n" + FOR_EVER, "exhausted", [(100, 5)]),
        # A line without an end, once no other can follow.
        ("open(where, 'a').write('{\"step\": 1, \"loss\": 0.5}')", "reached", [(1, 0.5)]),
        # It has ended well before it crashed.
        (REACHES + "sys.exit(3)", "reached", [(1, 0.1)]),
    ],
)  # fmt: skip
def test_how_a_trial_ends(
    code: str, status: str, heard: list[tuple[int, float]] | None, tmp_path: Path
) -> None:
    finished = train(tmp_path, trial_of(program(code)))
    assert finished.outcome.status == status
    assert heard is None or losses(finished) == heard


STAYS = {
    "a daemon": """
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    import socket
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    listener = socket.create_server(("127.0.0.1", 0))
    with open("port", "w") as file:
        file.write(str(listener.getsockname()[1]))
    os.rename("port", "listening")
    while True: time.sleep(100)
os.wait()
wait_for("listening")
"""
    + REACHES,
    "many that fork": """
for _ in range(5):
    os.fork()
    os.setsid() if os.getpid() % 2 and os.getpid() != os.getpgrp() else None
"""
    + IGNORES
    + REACHES
    + FOR_EVER,
    "stopped": REACHES + "os.kill(os.getpid(), signal.SIGSTOP)",
}


@pytest.mark.parametrize("code", STAYS.values(), ids=STAYS)
def test_nothing_that_it_starts_stays(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(tmp_path, trial_of(program(code))).outcome.status == "reached"
    if (port := tmp_path / "listening").exists():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port.read_text())))


def test_the_stop_file_is_honoured_before_any_signal(tmp_path: Path) -> None:
    """It is the only way in which this one ends."""
    code = "step = 0\nwhile tell(step := step + 1, loss=5 if step < 3 else 0.1): time.sleep(0.01)"
    never = Devices(starts=(partial(kept, patience=10**6),))
    trials.PATIENCE = 10**6  # undone by the fixture
    finished = train(tmp_path, trial_of(program(IGNORES + code)), devices=never)
    assert losses(finished) == [(1, 5), (2, 5), (3, 0.1)]


def test_a_program_that_can_not_win_is_ended(tmp_path: Path) -> None:
    """As soon as others tell so, even if it reports nothing. Its next report is 7 steps away."""
    code = IGNORES + "tell(1, loss=5)\n" + FOR_EVER
    asked, next_report = [], ([8], 8)

    def ending(unmet: Mapping[Goal, int], upcoming: int) -> Any:
        asked.append((list(unmet.values()), upcoming))
        return "dominated" if asked.count(next_report) > 3 else None

    finished = train(tmp_path, trial_of(program(code, every=7)), ending)
    assert finished.outcome.status == "dominated"
    assert losses(finished) == [(1, 5)]


def test_time_in_which_all_are_stopped_is_no_silence_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a queue suspends a job."""
    go, stopped = tmp_path / "go", []
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + sum(stopped))
    monkeypatch.setattr(trials, "time", clock)
    waits = program(f"tell(1, loss=5)\nwait_for({str(go)!r})\ntell(2, loss=0.1)")
    events = events_of(tmp_path, trial_of(waits), Devices(starts=(IMPATIENT,), hang_seconds=600))
    next(event for _, event in events if event)
    stopped.append(3600)
    assert [next(events)[1] for _ in range(3)] == [None] * 3
    go.touch()
    *_, (_, ended) = events
    assert isinstance(ended, FinishedTrial)
    assert ended.outcome.status == "reached"


def test_a_program_that_says_nothing_is_ended(tmp_path: Path) -> None:
    hasty = Devices(starts=(IMPATIENT,), hang_seconds=0.3)
    said = r"reported nothing for 0\.3 seconds \(faults\.hang_seconds\) and was ended"
    with pytest.raises(ProgramFailed, match=said) as failure:
        train(tmp_path, trial_of(program("print('works', flush=True)\n" + FOR_EVER)), devices=hasty)
    assert failure.value.died


def test_a_program_that_writes_faster_than_it_is_read_does_not_keep_its_reader(
    tmp_path: Path,
) -> None:
    """There is time in between to end it, though it reports nothing new."""
    (tmp_path / "many").write_bytes(b"{}\n" * 10**6)
    lines = Lines(tmp_path / "many")
    parts = [len([*lines.new(exited)]) for exited in (None, None, 1)]
    assert parts[0] == parts[1] == 333_333
    assert sum(parts) == 10**6


@pytest.mark.parametrize("heard", [Heard(), PRINTED], ids=["reports", "prints"])
def test_a_program_may_want_an_empty_folder_and_remove_it(heard: Heard, tmp_path: Path) -> None:
    code = """
import shutil
assert not os.listdir("{folder}")
shutil.rmtree("{folder}")
tell(1, loss=0.1)
print("step 1 loss 0.1")
"""
    assert losses(train(tmp_path, trial_of(program(code, heard=heard)))) == [(1, 0.1)]


def test_runs_in_buckets_that_train_the_same_trial_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    places = [Place(f"s3://bucket/run-{number}/checkpoints") for number in range(2)]
    assert len({*map(trials.unshared_folder, places)}) == 2
    (private,) = tmp_path.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "getuid", iter((os.getuid(), -1)).__next__)
    with pytest.raises(ProgramFailed, match="belongs to another user"):
        trials.unshared_folder(places[0])


def of_ranks(code: str, count: int = 3, **more: Any) -> tuple[Trial, Devices]:
    devices = Devices(count=count, starts=(IMPATIENT,) * count, **more)
    return trial_of(program(code, launch="ranks")), devices


def test_all_ranks_may_report_the_same(tmp_path: Path) -> None:
    trial, devices = of_ranks("for step in range(1, 20): tell(step, loss=9 / step)")
    finished = train(tmp_path, trial, devices=devices)
    assert losses(finished) == [(step, 9 / step) for step in range(1, 11)]


def test_each_rank_sees_what_is_on_its_own_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its GPU and the folder there, but no number of Slurm's, which would be taken for a rank's."""

    def on_another(start: Start) -> Kept:
        with monkeypatch.context() as there:
            there.setenv("CUDA_VISIBLE_DEVICES", "1")
            there.chdir(tmp_path)
            return IMPATIENT(start)

    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_PROCID"):
        monkeypatch.setenv(name, "0")
    sees = "os.environ['CUDA_VISIBLE_DEVICES'], os.getcwd(), os.environ.get('SLURM_PROCID')"
    code = f"""
expected = [("0", {os.getcwd()!r}, None), ("1", {str(tmp_path)!r}, None)][rank]
assert ({sees}) == expected
tell(1, loss=0.5)
"""
    trial, devices = of_ranks(code, count=2)
    devices = replace(devices, starts=(IMPATIENT, on_another))
    assert losses(train(tmp_path, trial, devices=devices)) == [(1, 0.5)]


def test_the_other_ranks_end_with_one_that_fails(tmp_path: Path) -> None:
    trial, devices = of_ranks(f"tell(1, loss=5)\nif rank == 2: os._exit(5)\n{FOR_EVER}")
    with pytest.raises(ProgramFailed, match=r"the program ended with code 5\nrank 2:"):
        train(tmp_path, trial, devices=devices)


def test_waiting_for_ranks_takes_no_processor_time(tmp_path: Path) -> None:
    """Rank 0 has ended long before the others."""
    trial, devices = of_ranks("tell(1, loss=5)\nrank and time.sleep(0.5)", count=2)
    began = time.monotonic()
    looks = len([*events_of(tmp_path, trial, devices)])
    assert looks < 5 + (time.monotonic() - began) / trials.LOOK_SECONDS


WRITES = """
line = b"." * 999 + b"\\n"
for _ in range(200):
    os.write(1, line * 1_000)
print("." * 200_000, end="", flush=True)
print("step 7 loss 0.5", flush=True)
"""
"""The last line is long, too."""


def test_hundreds_of_megabytes_of_output_are_bounded_and_heard(tmp_path: Path) -> None:
    before, most, killer = memory_of(os.getpid()), 0, Killer("")
    trial, devices = trial_of(program(WRITES, heard=PRINTED)), Devices(starts=(killer.start,))
    for _, event in events_of(tmp_path, trial, devices):
        if isinstance(event, FinishedTrial):
            assert losses(event) == [(7, 0.5)]
        elif killer.kept:
            with suppress(OSError):
                most = max(most, memory_of(killer.kept[-1]._keeper.pid))
    assert most < 50 * 2**20
    assert memory_of(os.getpid()) - before < 50 * 2**20
    log = (tmp_path / "log.txt").read_bytes()
    assert len(log) < LOG_BYTES + 100
    assert log.endswith(b".step 7 loss 0.5\n")
    assert b"\n... 199" in log


def memory_of(process: int) -> int:
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def test_a_full_disk_for_the_output_ends_nothing(tmp_path: Path) -> None:
    full = Devices(starts=(partial(kept, log="/dev/full"),))
    finished = train(tmp_path, trial_of(program("print('x' * 10**6)\n" + REACHES)), devices=full)
    assert finished.outcome.status == "reached"


def test_ranks_wait_for_each_other_as_long_as_for_reports(tmp_path: Path) -> None:
    """For ever, with `hang_seconds: null`. So may whoever waits for the end of a program."""
    code = "tell(1, loss=float(os.environ['ORCHESTRATE_PATIENCE']))"
    assert losses(train(tmp_path, trial_of(program(code)))) == [(1, MANY)]
    files = {name: str(tmp_path / name) for name in ("log", "reports", "lock")}
    with closing(Kept(Start(command=["true"], environment={}, **files))) as ended:
        assert ended.ended(math.inf) is not None


def test_reports_that_can_not_be_kept_are_named(tmp_path: Path) -> None:
    lost = Devices(starts=(partial(kept, reports=str(tmp_path / "no/reports")),))
    with pytest.raises(ProgramFailed, match=r"No such file or directory: .*no/reports"):
        train(tmp_path, trial_of(program(FOR_EVER, heard=PRINTED)), devices=lost)
    full = Devices(starts=(partial(kept, reports="/dev/full"),))
    with pytest.raises(ProgramFailed, match="No space left"):
        train(tmp_path, trial_of(program(PRINTS + FOR_EVER, heard=PRINTED)), devices=full)


def test_secrets_of_a_sweep_are_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_ADDRESS", "ORCHESTRATE_RAY_DIED", "ORCHESTRATE_TOKEN"):
        monkeypatch.setenv(name, "a secret of ours")
    monkeypatch.setenv("USERS_OWN", "is passed on")
    code = "print(json.dumps(dict(os.environ)), flush=True)\n" + REACHES
    train(tmp_path, trial_of(program(code)), devices=Devices(hang_seconds=60))
    said = json.loads((tmp_path / "log.txt").read_text())
    assert "a secret of ours" not in said.values()
    assert {name for name in said if name.startswith(("RAY_", "ORCHESTRATE_"))} == {
        *("ORCHESTRATE_REPORTS", "ORCHESTRATE_STOP", "ORCHESTRATE_TRIAL", "ORCHESTRATE_PATIENCE")
    }
    assert said["USERS_OWN"] == "is passed on"
    assert said["HYDRA_FULL_ERROR"] == "1"  # else its last line is no error


def test_a_driver_with_thousands_of_open_files_hears_it(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit < 1500:
        pytest.skip("so many files can't be open here")
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert train(tmp_path, trial_of(program(REACHES))).outcome.status == "reached"
    finally:
        for each in held:
            os.close(each)


def test_training_and_validation_may_each_have_a_file_of_events(tmp_path: Path) -> None:
    written = pytest.importorskip("tensorboardX").SummaryWriter
    with written(tmp_path / "a") as training, written(tmp_path / "b") as validation:
        training.add_scalar("time", 9, 5, walltime=1)
        validation.add_scalar("loss", 2, 5, walltime=2)
        training.add_scalar("time", 8, 6, walltime=3)
    assert [*Events(tmp_path).new(0)] == [
        {"step": 5, "time": 1, "program/time": 9},
        {"step": 5, "time": 2, "loss": 2},
        {"step": 6, "time": 3, "program/time": 8},
    ]


def test_the_file_of_the_numbers_may_depend_on_the_devices(tmp_path: Path) -> None:
    heard = Heard(source="jsonl", place="{folder}/{batch_size_per_device}")
    code = "open('{folder}/4', 'w').write('{\"step\": 1, \"loss\": 0.5}')"
    trial = trial_of(program(code, heard=heard), batch_size=8)
    two = Devices(count=2, starts=(IMPATIENT,))
    assert losses(train(tmp_path, trial, devices=two)) == [(1, 0.5)]


def test_a_printed_time_is_a_metric_and_no_clock(tmp_path: Path) -> None:
    heard = replace(PRINTED, pattern=rf"{PRINTED.pattern} time (?P<time>\d+)")
    code = "print('step 1 loss 5 time 1000\\nstep 2 loss 5 time 2000', flush=True)"
    first, last = train(tmp_path, trial_of(program(code, heard=heard))).measurements
    assert last.metrics == {"loss": 5, "program/time": 2000}
    assert last.seconds - first.seconds < 100


def test_a_file_of_events_that_holds_none_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    event = b"\x05" + b"\0" * 7 + b"x" * 5000
    code = f"open('{{folder}}/events.out.tfevents.1', 'wb').write({event!r})"
    heard = Heard(source="tensorboard", place="{folder}")
    with pytest.raises(ProgramFailed, match="no events of TensorBoard"):
        train(tmp_path, trial_of(program(code, heard=heard)))


FAMILY = (
    """
if os.fork():
    if not os.fork():
        os.setsid()
        os.fork()
open("{folder}/" + str(os.getpid()), "w")
"""
    + IGNORES
    + FOR_EVER
)
"""Four processes, in two sessions, that say when they are there."""

HOLDS = """
import json, sys
from orchestrator.programs.starting import Kept, Start
Kept(Start(**json.loads(sys.argv[1]))).ended(10**6)
"""


def start_of(folder: Path, code: str) -> Start:
    places = {name: str(folder / name) for name in ("log", "reports", "lock")}
    environment = {"MARK_OF_TEST": os.environ["MARK_OF_TEST"], **told_of(places["reports"])}
    command = [*PYTHON, "-c", TELLS + code.replace("{folder}", str(folder))]
    return Start(command=command, environment=environment, patience=0.2, **places)


def told_of(reports: str) -> dict[str, str]:
    return {"ORCHESTRATE_REPORTS": reports, "ORCHESTRATE_STOP": f"{reports}-stop"}


def test_the_whole_family_ends_if_the_process_that_holds_it_is_killed(
    tmp_path: Path, mark: str
) -> None:
    told = json.dumps(vars(start_of(tmp_path, FAMILY)))
    command = [sys.executable, "-c", HOLDS, told]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as holder:
        wait_for(lambda: len([*tmp_path.glob("[0-9]*")]) == 4, holder)
        assert len(marked(mark)) == 6
        holder.kill()
        assert holder.stderr is not None
        assert holder.stderr.read() == b""
    wait_for(lambda: not marked(mark))


def test_the_whole_family_ends_if_its_keeper_is_killed_and_another_attempt_works(
    tmp_path: Path, mark: str
) -> None:
    trial, killer = trial_of(program(FAMILY.replace("{folder}", str(tmp_path)))), Killer("")
    events = events_of(tmp_path, trial, Devices(starts=(killer.start,)))
    there = (len([*tmp_path.glob("[0-9]*")]) == 4 for _ in events)
    killed = (killer.kept[0]._keeper.kill() for all_are in there if all_are)
    with pytest.raises(ProgramFailed, match="the program ended by signal 9") as failure:
        any(killed)
    assert failure.value.died
    assert marked(mark) == {}
    assert train(tmp_path, trial_of(program(REACHES))).outcome.status == "reached"


def test_the_whole_family_ends_although_its_keeper_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "PATIENCE", 0.1)
    kept = Kept(start_of(tmp_path, FAMILY))
    wait_for(lambda: len([*tmp_path.glob("[0-9]*")]) == 4)
    kept._keeper.send_signal(signal.SIGSTOP)
    kept.close()
    wait_for(kept.ended)  # which a killed keeper may be late to tell


def test_the_last_line_of_a_failure_under_accelerate_is_the_error(tmp_path: Path) -> None:
    log, trace = Log(str(tmp_path / "log.txt"), lambda line: None), "Traceback (most recent call"
    log.write(f"{trace}\nValueError: no data\n{trace} last)\n  File ".encode())
    log.write(b'"accelerate/commands/launch.py"\nsubprocess.CalledProcessError: returned 1.\n')
    log.close()
    assert log.last[-1] == b"ValueError: no data"


def test_colours_are_no_part_of_numbers(tmp_path: Path) -> None:
    lines: list[bytes] = []
    log = Log(str(tmp_path / "log.txt"), lines.append)
    log.write(b"step \x1b[1;36m50\x1b[0m loss \x1b[1;36m0.5\x1b[0m\n")
    log.close()
    assert lines == log.last == [b"step 50 loss 0.5"]


RESUMES = """
def halt_at(moment):
    while os.path.exists("halt") and moment >= float(open("halt").read()):
        time.sleep(0.001)

place, step, x = "{folder}/state", 0, 3.0
if os.path.exists(place):
    step, x = json.load(open(place))
else:
    open("begun-anew", "a").write("1")
while step < 100:
    x -= 0.02 * x + 0.003 * ((step * 7) % 5)
    step += 1
    if step % 3 == 0:
        {loss}
    elif step % 3 == 1:
        {error}
    halt_at(step + 0.5)
    with open(place + "-new", "w") as file:
        json.dump([step, x], file)
    os.rename(place + "-new", place)
    halt_at(step)
"""

SAYS: dict[str, tuple[Heard, str]] = {
    "report": (Heard(), "tell(step, {name}={value})"),
    "stdout": (
        Heard(
            source="stdout", pattern=r"s (?P<step>\d+) (loss (?P<loss>\S+)|error (?P<error>\S+))"
        ),
        "print('s', step, '{name}', {value}, flush=True)",
    ),
    "jsonl": (
        Heard(source="jsonl", place="{folder}/log"),
        "open('{folder}/log', 'a').write(json.dumps({'step': step, '{name}': {value}}) + '\\n')",
    ),
}

GOALS = ("loss < 1.1", "error < 0.4")


def resuming(source: str, resumes: bool) -> Trial:
    heard, say = SAYS[source]
    code = RESUMES
    for name, value in {"loss": "x", "error": "x / 2"}.items():
        code = code.replace(f"{{{name}}}", say.replace("{name}", name).replace("{value}", value))
    return trial_of(program(code, heard=heard, resumes=resumes), goals=GOALS)


class Killer:
    """Starts programs and kills what it can reach of them."""

    def __init__(self, seed: str, patience: float = 0.2) -> None:
        self.patience = patience
        self.chance, self.kept = random.Random(seed), list[Kept]()

    def start(self, told: Start) -> Kept:
        self.kept.append(kept(told, patience=self.patience))
        return self.kept[-1]

    def kill(self, what: str) -> None:
        keeper = self.kept[-1]._keeper.pid
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        for victim in children if what == "program" else [keeper]:
            os.kill(int(victim), signal.SIGKILL)


def attempt(
    folder: Path, trial: Trial, killer: Killer, how: str, after: float = 0
) -> FinishedTrial | None:
    """Trains it until something happens, once such a step is heard."""
    events = events_of(folder, trial, Devices(starts=(killer.start,)))
    with closing(events), suppress(ProgramFailed):
        for _, event in events:
            if isinstance(event, FinishedTrial):
                return event
            if how and event is not None and event.step >= after:
                if how == "closed":
                    return None
                killer.kill(how)
                after = math.inf
    return None


@pytest.mark.parametrize(
    ("source", "resumes"), [*((source, True) for source in SAYS), ("report", False)]
)
def test_a_killed_program_comes_to_what_it_would_have_come_to(
    source: str, resumes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trial, killer = resuming(source, resumes), Killer(source)
    truth = train(tmp_path / "calm", trial)
    (tmp_path / "begun-anew").unlink()
    # What is in a pipe when its reader is killed is lost.
    attacks = ["program", "closed", "program", *(["keeper"] if source != "stdout" else [])]
    for number, how in enumerate(attacks):
        halt = 8 + 10 * number + killer.chance.randint(0, 10) / 2
        (tmp_path / "halt").write_text(str(halt))
        # Two reports may not be complete by then.
        assert (
            attempt(tmp_path, trial, killer, how, after=halt - 3 - killer.chance.randint(0, 2))
            is None
        )
    (tmp_path / "halt").unlink()
    finished = attempt(tmp_path, trial, killer, "")
    assert finished.outcome.status == truth.outcome.status == "reached"
    assert finished.outcome.steps == truth.outcome.steps
    heard = [[(m.step, m.metrics) for m in each.measurements] for each in (finished, truth)]
    assert heard[0] == heard[1]
    assert (finished.outcome.resumed_steps > 0) == resumes
    assert len((tmp_path / "begun-anew").read_text()) == (1 if resumes else len(attacks) + 1)
    assert not [*(tmp_path / "trials").iterdir()]


def test_what_nobody_has_heard_is_heard_by_the_next_attempt(tmp_path: Path) -> None:
    """A program that is asked to end may report and save its state by then."""
    code = """
def end(*_):
    tell(7, loss=0.5)
    open("{folder}/state", "w")
    sys.exit()

if os.path.exists("{folder}/state"):
    sys.exit()
signal.signal(signal.SIGTERM, end)
# Whoever hears the first report may ask at once.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
tell(3, loss=5)
tell(5, error=5)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
"""
    trial = trial_of(program(code + FOR_EVER, resumes=True))
    patient = Killer("", patience=10**6)
    assert attempt(tmp_path, trial, patient, "closed") is None
    finished = attempt(tmp_path, trial, patient, "")
    assert finished.outcome.status == "reached"
    assert [each.step for each in finished.measurements] == [3, 5, 7]
    assert finished.outcome.resumed_steps == 7


def test_a_state_that_cannot_be_loaded_is_given_up(tmp_path: Path) -> None:
    """The program may have been ended while it wrote over its last state."""
    code = f"""
if os.path.exists("{{folder}}/state"):
    sys.exit("cut off")
open("{{folder}}/state", "w").close()
open("{tmp_path}/begun-anew", "a").write("1")
tell(1, loss=5, error=5)
"""
    trial = trial_of(program(code + FOR_EVER, resumes=True))
    for begun in ("1", "1", "1", "11"):  # one start may fail for another reason
        attempt(tmp_path, trial, Killer(""), "closed")
        assert (tmp_path / "begun-anew").read_text() == begun


def test_an_attempt_waits_for_what_is_left_of_an_earlier_one(tmp_path: Path) -> None:
    """Its driver is gone, and it is still ending."""
    trial = trial_of(program(TELLS_AT_LAST + FOR_EVER, resumes=True))
    folder = tmp_path / "trials" / trial.file_name
    channel, files = folder / f"{starting.CHANNEL}000000-first", folder / starting.FILES
    for each in (channel, files):
        each.mkdir(parents=True)
    places = {"log": channel / "log", "reports": channel / starting.REPORTS}
    earlier = Kept(
        replace(
            start_of(tmp_path, TELLS_AT_LAST.replace("{folder}", str(files)) + FOR_EVER),
            environment={**os.environ, **told_of(str(places["reports"]))},
            lock=str(folder / starting.LOCK.format(rank=0)), patience=10**6,
            **{name: str(place) for name, place in places.items()},
        )
    )  # fmt: skip
    wait_for((files / "begun").exists)
    earlier.end()
    events = events_of(tmp_path, trial, Devices(starts=(IMPATIENT,)))
    for _ in range(5):
        assert next(events)[1] is None
    hasty = events_of(tmp_path, trial, Devices(hang_seconds=0.05))
    with pytest.raises(ProgramFailed, match="an earlier attempt at this trial does not end"):
        list(hasty)
    assert [*folder.glob(f"{starting.CHANNEL}*")] == [channel], "nothing is started yet"
    (files / "go").touch()
    *_, (_, finished) = events
    assert losses(finished) == [(7, 0.5)]
    earlier.close()


def test_a_trial_that_is_over_is_not_trained_again(tmp_path: Path) -> None:
    """Its driver, or the machine of a rank, is gone while its program ends."""
    trial = trial_of(program(REACHES + FOR_EVER, resumes=True))
    trials.PATIENCE = 10**6  # undone by the fixture
    with closing(events_of(tmp_path, trial, Devices())) as events:
        assert any(measurement for _, measurement in events)
        assert next(events)[1] is None, "it has time to end itself"
    ((_, finished),) = events_of(tmp_path, trial, Devices(starts=()))
    assert losses(finished) == [(1, 0.1)]
    assert not [*(tmp_path / "trials").iterdir()]


TELLS_AT_LAST = """
def end(*_):
    wait_for("{folder}/go")
    tell(7, loss=0.5)
    sys.exit()

signal.signal(signal.SIGTERM, end)
open("{folder}/begun", "w")
"""
