"""Archives that are broken or hostile: what is bad costs itself, never the import or the answer."""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import invoked
from test_archive import SPACE, write_study, write_trial

from orchestrator.records import BadInput

CURVE = "step,val/error\n10,0.5\n20,0.1\n"
GOAL = "--goal=val/error<0.2"
STUDY = "mnist/fc/sgd/8"


Found = dict[int, tuple[int | None, int | None]]
"""Batch size -> the fewest steps, and the trial."""


def answer(*arguments: object) -> tuple[int, str]:
    """Exit code and output of a command, run in this process; what it can't explain is raised."""
    try:
        return invoked(*arguments)
    except BadInput as error:
        return 2, f"{error.code}: {error}"


def imported(archive: Path) -> Found:
    run = archive.with_name("run")
    code, said = answer("import", archive, "--out", run)
    assert code == 0, said
    lines = (run / "problems.txt").read_text(encoding="utf-8").splitlines()
    assert all(line.isprintable() and ": " in line for line in lines)
    rows = json.loads(answer("frontier", run, GOAL, "--json")[1])
    return {row["batch_size"]: (row["steps"], row["trial"]) for row in rows}


def asked(archive: Path) -> Found:
    """The same, after asking the run all that there is to ask."""
    found, run = imported(archive), archive.with_name("run")
    for question in (["status"], ["best", "val/error"], ["report", GOAL], ["frontier", GOAL]):
        code, said = answer(question[0], run, *question[1:])
        assert code == 0, said
    assert {path.name for path in archive.parent.iterdir()} <= {"archive", "run", "beyond"}
    return found


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two studies of two trials."""
    for size in (8, 16):
        study = write_study(tmp_path / f"archive/mnist/fc/sgd/{size}")
        for number in range(2):
            write_trial(study, number, CURVE)
    return tmp_path / "archive"


def problems(archive: Path) -> str:
    return (archive.with_name("run") / "problems.txt").read_text(encoding="utf-8")


def assert_said(archive: Path, reasons: Iterable[tuple[str, str]]) -> None:
    """Checks that each of these files has its line, with the reason, and no other file has one."""
    lines = sorted(line.split(": ", 1) for line in problems(archive).splitlines())
    for (file, said), (expected, reason) in zip(lines, sorted(reasons), strict=True):
        assert file == expected
        assert reason in said


Content = dict[str, Any] | str | bytes


def edit(file: Path, content: Content) -> None:
    """Changes these keys, or all of the file."""
    if isinstance(content, dict):
        content = json.dumps(json.loads(file.read_text()) | content)
    file.write_bytes(content.encode() if isinstance(content, str) else content)


HUGE = int("9" * 4000)
DEEP = "[" * 100_000

TRIALS: dict[str, tuple[Content, str]] = {
    "an id beyond 32 bits": ({"trial_id": 2**31}, "trial_id 2147483648 is not a whole number"),
    "a bool for an id": ({"trial_id": True}, "trial_id True"),
    "an id of 4,000 digits": ({"trial_id": HUGE}, "trial_id 99"),
    "a list for a status": ({"status": ["COMPLETE"]}, "status ['COMPLETE'] is not one of"),
    "negative steps": ({"steps": -5}, "steps -5"),
    "steps that are none": ({"steps": math.nan}, "steps nan"),
    "too many digits": ('{"status": "COMPLETE", "trial_id": ' + "9" * 5000 + "}", "digits"),
    "depth": ('{"status": "COMPLETE", "parameters": ' + DEEP, "is nested too deeply"),
    "a list": ("[]", "is not a JSON object"),
    "latin-1": ('{"status": "COMPLETE", "é": 1}'.encode("latin-1"), "is not UTF-8 text"),
    "size": (b" " * 2**23 + b"{}", "has 8,388,610 bytes; at most 4,194,304 are read"),
}  # fmt: skip


def test_a_bad_trial_costs_that_trial(archive: Path) -> None:
    """Each would win."""
    reasons = []
    for number, (content, reason) in enumerate(TRIALS.values(), start=2):
        trial = write_trial(archive / STUDY, number, "step,val/error\n10,0.1\n")
        edit(trial / "metadata.json", content)
        reasons.append((f"{STUDY}/{number}/metadata.json", reason))
    assert imported(archive) == {8: (20, 0), 16: (20, 0)}
    assert_said(archive, reasons)


PARAMETERS: dict[str, tuple[Any, str]] = {
    "a map": ({"learning_rate": {"a": 1}}, "'learning_rate' is left out"),
    "text in a range": ({"learning_rate": "fast"}, "'learning_rate' is left out"),
    "no number": ({"learning_rate": math.nan}, "'learning_rate' is left out"),
    "half a pair in a name": ({"\ud800": 1}, r"parameter '\ud800' is left out"),
    "a newline in a name": ({"a\nb": 1}, r"parameter 'a\nb' is left out"),
    "a list": ([1, 2], "parameters is [1, 2], not a JSON object"),
    "a million": (dict.fromkeys(map(str, range(10**5)), 1), "has 100,000 entries; at most 100"),
}


def test_nothing_lies_beyond_the_end_of_a_scale(archive: Path) -> None:
    """0 where the logarithm is searched, 1 where that of the distance to 1 is."""
    edit(archive / STUDY / "0/metadata.json", {"parameters": {"learning_rate": 0, "momentum": 1}})
    assert imported(archive) == {8: (20, 0), 16: (20, 0)}
    assert problems(archive) == ""
    said = answer("frontier", archive.with_name("run"), GOAL)[1]
    assert "learning_rate 0 is near the lower end" in " ".join(said.split())


STUDIES: dict[str, tuple[Content, str]] = {
    "a list": ("[]", "is not a JSON object"),
    "depth": (DEEP, "is nested too deeply"),
    "a huge number for train_steps": ({"train_steps": HUGE}, "train_steps 99"),
    "half a step for train_steps": ({"train_steps": 0.5}, "train_steps 0.5"),
    "a list for parameter_configs": ({"parameter_configs": [1]}, "parameter_configs is [1]"),
    **{
        f"a range with {name}": ({"parameter_configs": SPACE | {"x": entry}}, "parameter 'x': ")
        for name, entry in {
            "an unknown scale": SPACE["learning_rate"] | {"scale": "SOME"},
            "its ends exchanged": SPACE["learning_rate"] | {"min_value": 20},
            "0 in a logarithm": SPACE["learning_rate"] | {"min_value": 0},
            "4,000 digits": SPACE["learning_rate"] | {"max_value": HUGE},
            "odd options": {"type": "DISCRETE", "feasible_points": [1, None]},
            "text for options": {"type": "DISCRETE", "feasible_points": "abc"},
        }.items()
    },
}


def test_a_bad_parameter_costs_itself_and_a_bad_study_its_document(archive: Path) -> None:
    """Such a study is what its folders say."""
    bad = [("0/metadata.json", {"parameters": one}, reason) for one, reason in PARAMETERS.values()]
    bad += [("study.json", content, reason) for content, reason in STUDIES.values()]
    reasons = []
    for size, (file, content, reason) in enumerate(bad, start=100):
        study = write_study(archive / f"mnist/fc/sgd/{size}")
        write_trial(study, 0, CURVE)
        edit(study / file, content)
        reasons.append((f"mnist/fc/sgd/{size}/{file}", reason))
    sizes = (8, 16, *range(100, 100 + len(reasons)))
    assert imported(archive) == dict.fromkeys(sizes, (20, 0))
    assert_said(archive, reasons)


CURVES: dict[str, tuple[Content, str, int | None]] = {
    "a negative step": ("step,val/error\n-5,0.1\n20,0.1\n", "rows whose step is no whole", 20),
    "too many examples": (f"step,val/error\n{2**61},0.1\n", "rows whose step is no whole", None),
    "a newline in a name": ('step,"val/a\nb",val/error\n20,1,0.1\n', r"'val/a\nb'", 20),
    "a zero in a name": ("step,val/a\0b,val/error\n20,1,0.1\n", r"'val/a\x00b'", 20),
    "names that are no UTF-8": (b"step,val/\xff,val/error\n20,1,0.1\n", "", 20),
    "a byte-order mark": (b"\xef\xbb\xbfstep,val/error\n20,0.1\n", "", 20),
    "columns of ours": ("step,trial,examples,val/error\n20,7,7,0.1\n", "'trial', 'examples'", 20),
    "a step there twice": ("step,step,val/error\n20,10,0.1\n", "there twice", 20),
    "quotes without an end": ('step,val/error\n20,"0.1\n' + "x" * 200_000, "a line of", None),
    "100,000 columns": (f"step,{'val/a,' * 100_000}\n", "has a line of 600,006 characters", None),
    "300 metrics": (f"step,{','.join(f'a/{n}' for n in range(300))}\n", "301 columns", None),
    "a cell too many": ("step,val/error\n20,0.1\n30,0.05,1\n", "numbers: 1", 20),
    "half a step": ("step,val/error\n1.5,0.1\n20.0,0.1\n", "to 1,000,000,000: 1", 20),
    "no numbers": ("step,val/error\n1,true\n20,0.1\n", "cells that are no numbers: 1", 20),
    "UTF-16": ("step,val/error\n20,0.1\n".encode("utf-16"), "no column `step`", None),
}


def test_a_bad_curve_is_read_as_far_as_it_can_be(archive: Path) -> None:
    found: Found = {8: (20, 0), 16: (20, 0)}
    reasons = []
    for size, (content, reason, steps) in enumerate(CURVES.values(), start=100):
        study = write_study(archive / f"mnist/fc/sgd/{size}")
        edit(write_trial(study, 0, "") / "measurements.csv", content)
        write_trial(study, 1, "step,val/error\n30,0.1\n")
        found[size] = (30, 1) if steps is None else (20, 0)
        if reason:
            reasons.append((f"mnist/fc/sgd/{size}/0/measurements.csv", reason))
    large = write_trial(archive / STUDY, 8, "") / "measurements.csv"
    os.truncate(large, 2**40)
    reason = "has 1,099,511,627,776 bytes; at most 33,554,432 are read"
    reasons.append((str(large.relative_to(archive)), reason))
    assert imported(archive) == found
    assert_said(archive, reasons)


def test_documents_with_a_mark_or_in_utf_16_are_read_and_others_above_studies_are_not(
    archive: Path,
) -> None:
    for folder in (archive, archive / "mnist"):
        for name in ("study.json", "metadata.json", "measurements.csv"):
            (folder / name).write_text("{}")
    for number, encoding in enumerate(("utf-8-sig", "utf-16")):
        file = archive / STUDY / str(number) / "metadata.json"
        file.write_text(file.read_text(), encoding=encoding)
    assert imported(archive) == {8: (20, 0), 16: (20, 0)}
    assert problems(archive).count("is not at [GROUP/]") == problems(archive).count("\n") == 2


def test_links_to_folders_are_not_followed(archive: Path) -> None:
    (archive / STUDY / "7").symlink_to(archive / STUDY / "0")
    (archive / "mnist/loop").symlink_to(archive)
    archive.rename(archive.with_name("real"))
    archive.symlink_to("real")
    assert imported(archive) == {8: (20, 0), 16: (20, 0)}
    assert problems(archive) == ""


NAMES = ["[red]", "'", "x" * 200, "%2E%2E", "Sgd", "SGD", "e\u0301", "\xe9", " "]
BAD_NAMES = ["a\nb", "\x1b[31m", "\udcff", "x" * 250, "\u3042" * 30]
BAD_SIZES = ["0", "-8", "1_000", "\uff18", str(10**12), str(2**63), "1" * 100, "8.0"]


def test_odd_names_of_folders(archive: Path) -> None:
    """A bad one costs its study, and names that differ are studies that do."""
    for folder in [f"{name}/16" for name in NAMES + BAD_NAMES] + [f"sgd/{s}" for s in BAD_SIZES]:
        study = archive / "mnist/fc" / folder
        study.mkdir(parents=True)
        (study / "study.json").write_text("{}")
        write_trial(study, 0, CURVE)
    (archive / STUDY).with_name("08").mkdir()
    write_trial((archive / STUDY).with_name("08"), 0, CURVE)
    assert imported(archive) == {8: (20, 0), 16: (20, 0)}
    rows = json.loads(answer("frontier", archive.with_name("run"), GOAL, "--json")[1])
    assert sorted(row["recipe"] for row in rows) == sorted(["sgd", "sgd", *NAMES])
    said = problems(archive)
    assert said.count("\n") == len(BAD_NAMES + BAD_SIZES) + 2
    assert said.count("is not a printable name") == 3
    assert said.count("is too long: as the name of a folder") == 2
    assert "mnist/fc/sgd/8: mnist/fc/sgd/08 holds the same study" in said


def test_odd_names_of_trials(archive: Path) -> None:
    for name in ("..metadata", "a\nb", "\udcff", "-1", "0" * 250):
        trial = write_trial(archive / STUDY, 7, CURVE)
        (trial / "metadata.json").write_text('{"status": "COMPLETE"}')
        trial.rename(archive / STUDY / name)
    assert asked(archive) == {8: (20, 0), 16: (20, 0)}
    lines = problems(archive).splitlines()
    assert len(lines) == 5
    assert r"/\udcff/metadata.json: trial_id '\udcff' is not a whole number" in problems(archive)


def test_a_study_that_cannot_be_read_costs_that_study(archive: Path) -> None:
    for number in range(2):
        names = ",".join(f"val/{number}-{n}" for n in range(150))
        edit(archive / STUDY / f"{number}/measurements.csv", f"step,{names}\n")
    assert asked(archive) == {16: (20, 0)}
    assert problems(archive) == f"{STUDY}: has 302 columns in total; at most 200 are read\n"


def test_an_archive_without_a_study_that_can_be_read(archive: Path) -> None:
    for size in (8, 16):
        (archive / f"mnist/fc/sgd/{size}").rename(archive / f"mnist/fc/sgd/{size}th")
    code, said = answer("import", archive, "--out", archive.with_name("run"))
    assert code == 2
    assert said.startswith("no-study: ")
    assert "mnist/fc/sgd/16th" in said


def test_one_study_has_a_range_where_another_has_text(archive: Path) -> None:
    edit(archive / STUDY / "study.json", {"parameter_configs": {}})
    for number, rate in enumerate(("fast", 0.1)):
        parameters = {"learning_rate": rate, "momentum": 0.9}
        edit(archive / STUDY / f"{number}/metadata.json", {"parameters": parameters})
    (archive / STUDY).rename(archive / "mnist/fc/sgd/64")
    assert asked(archive) == {64: (20, 0), 16: (20, 0)}
