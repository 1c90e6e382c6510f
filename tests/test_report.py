import re
from dataclasses import replace
from pathlib import Path

from orchestrator.analysis import scalings
from orchestrator.places import Place
from orchestrator.report import write_report
from orchestrator.report.figures import steps_to_goal
from orchestrator.results import FrontierRow

ROW = FrontierRow(
    workload="digits/mlp",
    recipe="sgd",
    optimizer="sgd",
    batch_size=1,
    goal="val/error < 0.04",
    within=None,
    reached=True,
    censored=False,
    steps=1024,
    resolution=8,
    trial=3,
    seed=5,
    params={"learning_rate": 0.1},
    metrics={"val/error": 0.03},
    seconds=1.0,
    trials={"reached": 20},
    trials_used=20,
    warnings=(),
)
ROWS = [replace(ROW, batch_size=2**k, steps=2 ** (10 - k)) for k in range(6)]
UNREACHED = replace(ROW, batch_size=64, reached=False, steps=None, params=None, trial=None)


def page(path: Path, rows: list[FrontierRow]) -> str:
    write_report(
        Place.at(path / "report.html"), title="t", rows=rows, scalings=scalings(rows),
        provenance={"python": "3.11"}, sweep_file="name: t",
    )  # fmt: skip
    return (path / "report.html").read_text()


def without_plotly(text: str) -> str:
    return max(re.split(r"<script>.*?</script>", text, maxsplit=1, flags=re.S), key=len)


def test_the_figure_shows_every_point_and_the_perfect_line() -> None:
    perfect, line = steps_to_goal([*ROWS, UNREACHED]).data
    assert list(line.x) == [row.batch_size for row in ROWS]
    assert list(line.y) == [row.steps for row in ROWS]
    assert all(x * y == 1024 for x, y in zip(perfect.x, perfect.y, strict=True))


def test_the_page_holds_the_answer_and_asks_the_network_for_nothing(tmp_path: Path) -> None:
    text = without_plotly(page(tmp_path, [*ROWS, UNREACHED]))
    assert "perfect scaling up to batch size 32" in text
    assert "not reached" in text
    assert not re.findall(r'(?:src|href)="(?!data:)', text)


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    rows = [replace(row, workload=evil, recipe=evil, warnings=(evil,)) for row in ROWS]
    assert evil not in page(tmp_path, rows)


def test_a_run_without_an_answer_still_has_a_page(tmp_path: Path) -> None:
    assert "never reached" in page(tmp_path, [UNREACHED])
