import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import ended, make_trial, refused, wait_for

from orchestrator.files.places import Place
from orchestrator.records import FinishedTrial
from orchestrator.results import RunFiles, merger, study_files
from orchestrator.results.merger import Merger


def finished(index: int, *errors: float, status: Any = "exhausted") -> FinishedTrial:
    shown = {10 * number: error for number, error in enumerate(errors)}
    return ended(make_trial(index=index), status, shown, steps=10 * len(errors))


STUDY = make_trial().study
KEY = STUDY.key


def test_the_rows_that_make_trials_count_are_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, write = RunFiles(tmp_path), study_files.write_table
    written: list[str] = []

    def full_after_one(place: Place, table: Any, **options: Any) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(str(place))
        write(place, table, **options)

    with monkeypatch.context() as patch:
        patch.setattr(study_files, "write_table", full_after_one)
        with pytest.raises(OSError, match="No space left"):
            run.write(finished(0, 3.0), finished(1, 3.0))
    assert [Path(place).relative_to(tmp_path).parts[0] for place in written] == ["measurements"]
    assert not [*tmp_path.rglob("*.parquet")], "attempts would fill the disk"
    run.write(finished(0, 3.0), finished(1, 3.0))
    assert run.trials(KEY)["trial"].to_pylist() == [0, 1]


def test_the_latest_record_of_a_trial_counts(tmp_path: Path, monkeypatch: Any) -> None:
    """Also if the clock is set back, another process writes, and some trials are merged."""
    run, now = RunFiles(tmp_path), 1_795_734_249_000
    for attempt, passed in enumerate((0, -(10**9), 5, -7)):
        monkeypatch.setattr(study_files.time, "time_ns", lambda p=passed: (now + p) * 10**6)
        # Trial 0 goes on each time, another one ends beside it.
        again = finished(0, *map(float, range(attempt + 1)), status="paused")
        run.write(again, finished(4 - attempt, 1.0))
        run = RunFiles(tmp_path) if attempt % 2 else run
        if attempt == 1:
            run.put_together(KEY, finished=False)
        assert run.trials(KEY)["steps"].to_pylist()[0] == 10 * (attempt + 1)
        assert run.curve(KEY, 0)["val/error"].to_pylist() == [*map(float, range(attempt + 1))]
    assert run.trials(KEY)["trial"].to_pylist() == [0, 1, 2, 3, 4]
    assert run.measurements(KEY)["trial"].to_pylist() == [0] * 4 + [1, 2, 3, 4]
    assert run.loose(KEY) == 2


def test_a_trial_may_end_sooner_than_it_was_paused(tmp_path: Path) -> None:
    """Trained anew on another machine, whose last bits differ. It would begin anew for ever."""
    run = RunFiles(tmp_path)
    run.write(finished(0, 3.0, 2.0, 1.0, status="paused"))
    run.put_together(KEY, finished=False)
    run.write(finished(0, 3.0, 0.1, status="reached"))
    for _ in range(2):
        assert run.trials(KEY)["status"].to_pylist() == ["reached"]
        assert run.curve(KEY, 0)["val/error"].to_pylist() == [3.0, 0.1]
        run.put_together(KEY, finished=True)


def test_a_copy_that_was_made_during_a_merge_is_refused(tmp_path: Path) -> None:
    """It has rows of trials without their measurements, so another trial would seem the best."""
    run = RunFiles(tmp_path)
    run.write(finished(0, 3.0, 0.1, status="reached"))
    run.put_together(KEY, finished=False)
    (file,) = (tmp_path / "measurements").rglob("study.parquet")
    copied = file.read_bytes()
    run.write(finished(1, 0.1, status="reached"))
    run.put_together(KEY, finished=False)
    file.write_bytes(copied)
    with refused("damaged-run", f"{file} lacks trials"):
        RunFiles(tmp_path).measurements(KEY)


def test_a_trial_from_before_there_were_stacks_was_trained_alone(tmp_path: Path) -> None:
    run = RunFiles(tmp_path)
    run.write(finished(0, 3.0))
    (file,) = (tmp_path / "trials").rglob("*.parquet")
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["width"]), file)
    assert [trial.outcome.width for trial in run.finished(STUDY)] == [1]


def tables(run: RunFiles) -> list[object]:
    return [run.trials(KEY).to_pylist(), run.measurements(KEY).to_pylist(), run.metrics(KEY)]


def test_trials_put_together_are_the_same_trials(tmp_path: Path) -> None:
    run = RunFiles(tmp_path)
    run.write(finished(2, 2.0, math.nan, status="diverged"))
    run.write(finished(0, 3.0, 1.0))
    run.write(finished(1, status="failed"))
    before, trials = tables(run), [*run.finished(STUDY)]
    run.put_together(KEY, finished=True)
    assert {path.name for path in tmp_path.rglob("*.parquet")} == {"study.parquet"}
    assert str(tables(run)) == str(before)
    assert str([*run.finished(STUDY)]) == str(trials)
    assert run.curve(KEY, 0)["val/error"].to_pylist() == [3.0, 1.0]
    # The failed one is tried again, and more are added.
    run.write(finished(1, 5.0))
    run.write(finished(3, 4.0))
    assert run.curve(KEY, 1)["val/error"].to_pylist() == [5.0]
    before = tables(run)
    run.put_together(KEY, finished=True)
    assert str(tables(run)) == str(before)
    assert run.trials(KEY)["status"].to_pylist() == 2 * ["exhausted"] + ["diverged", "exhausted"]
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_what_is_paused_is_dominated_once_its_study_is_over(tmp_path: Path) -> None:
    run = RunFiles(tmp_path)
    run.write(finished(0, 3.0, status="paused"))
    run.write(finished(1, 3.0, 1.0))
    for over, status in ((False, "paused"), (True, "dominated"), (False, "dominated")):
        before = run.measurements(KEY)
        run.put_together(KEY, finished=over)
        assert run.trials(KEY)["status"].to_pylist() == [status, "exhausted"]
        assert run.measurements(KEY) == before


class Killed(BaseException):
    pass


def test_putting_trials_together_may_end_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = 0

    def or_killed(act: Callable[..., None]) -> Callable[..., None]:
        def acting(*arguments: object) -> None:
            nonlocal allowed
            if allowed == 0:
                raise Killed
            allowed -= 1
            act(*arguments)

        return acting

    for act in ("write", "remove"):
        monkeypatch.setattr(Place, act, or_killed(getattr(Place, act)))
    for acts in range(100):
        run = RunFiles(tmp_path / str(acts))
        allowed = 1000
        run.write(*(finished(index, 3.0 + index) for index in range(3)))
        run.put_together(KEY, finished=True)
        run.write(finished(1, 7.0, 8.0), finished(5, 1.0))
        run.write(finished(4, 9.0))
        before = tables(run)
        allowed = acts
        with suppress(Killed):
            run.put_together(KEY, finished=True)
        over = allowed > 0
        assert str(tables(run)) == str(before), f"after {acts} acts"
        allowed = 1000
        run.put_together(KEY, finished=True)
        assert str(tables(run)) == str(before)
        assert {path.name for path in run.place.local.rglob("*.parquet")} == {"study.parquet"}
        if over:
            break
    assert over
    assert acts > 5


@pytest.mark.dear
def test_trials_are_put_together_while_others_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And some of them again, which must not be taken for what was read before."""
    monkeypatch.setattr(merger, "MOST_LOOSE", 20)
    monkeypatch.setattr(merger, "LOOSE_SHARE", 0)
    run, chance, loose = RunFiles(tmp_path), random.Random(0), []
    keys = [replace(KEY, batch_size=size) for size in (32, 64)]
    with closing(Merger(run, keys)) as merging:
        for index in range(300):
            # A trial that went on has got further than before.
            group = {index, chance.randint(0, index)}
            run.write(*(finished(n, *map(float, range(index - n + 1))) for n in group))
            merging.wrote(KEY, len(group))
            loose.append(run.loose(KEY))
            if index == 200:
                wait_for(lambda: run.loose(KEY) <= 20)
    assert max(loose) < 290
    before = tables(run)
    assert run.trials(KEY)["trial"].to_pylist() == [*range(300)]
    lengths = Counter(run.measurements(KEY)["trial"].to_pylist())
    assert [10 * lengths[n] for n in range(300)] == run.trials(KEY)["steps"].to_pylist()
    run.put_together(KEY, finished=True)
    assert str(tables(run)) == str(before)


def test_what_cannot_be_put_together_does_not_end_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(merger, "MOST_LOOSE", 2)
    run = RunFiles(tmp_path)
    run.write(finished(0, 1.0))
    for file in [*tmp_path.rglob("trials-*")]:
        # In the way of what is to be written.
        file.with_name("study.parquet").joinpath("x").mkdir(parents=True)
    with closing(Merger(run, [KEY])) as merging:
        for index in range(1, 4):
            run.write(finished(index, 1.0))
            merging.wrote(KEY)
        wait_for(lambda: "can't be merged now" in caplog.text)
    assert run.trials(KEY)["trial"].to_pylist() == [0, 1, 2, 3]
    assert run.loose(KEY) == 4
