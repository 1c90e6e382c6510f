"""A study none of whose trials was ever measured goes through every reader."""

from pathlib import Path

import pytest
from conftest import ended, first_trials, train_all
from test_faults import made
from typer.testing import CliRunner

from orchestrator.cli import app

pytestmark = pytest.mark.dear


@pytest.mark.parametrize("merged", [False, True])
def test_every_command_reads_it(merged: bool, tmp_path: Path) -> None:
    """All trials of the first study failed at once."""
    run, planned = made(tmp_path / "run")
    for trial in first_trials(planned.studies[0], planned.sweep.seed):
        run.write(ended(trial, "failed", error="no"))
    if merged:
        for study in planned.studies:
            run.put_together(study.key, finished=True)
    archive, compact, imported = (tmp_path / name for name in ("archive", "compact", "imported"))
    answering = (["frontier"], ["frontier", "--json"], ["status", "--json"], ["report"],
                 ["report", "--json"], ["best", "val/error"], ["advise"])  # fmt: skip
    for name, *options in answering:
        read(name, run.place, *options)
    read("export", run.place, archive)
    read("export", "--compact", run.place, compact)
    read("import", archive, "--out", imported)
    for name, *options in answering:
        read(name, compact, *options)
        read(name, imported, *options)
    read("compare", run.place, compact)
    assert train_all(run, planned) == 6, "all are tried again"
    assert read("frontier", run.place, "--csv").count("\n") == 3


def read(*arguments: object) -> str:
    ended = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert ended.exit_code == 0, (arguments, ended.output, ended.exception)
    return ended.output
