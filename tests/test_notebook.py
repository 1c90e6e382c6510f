"""docs/notebook.ipynb shows what its cells come to."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from conftest import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
FIGURE = "application/vnd.plotly.v1+json"


def outputs_of(notebook: Path) -> list[list[dict[str, Any]]]:
    """What each code cell shows; of figures only what does not depend on how they are drawn."""
    cells = json.loads(notebook.read_text())["cells"]
    return [
        [compared(output) for output in cell["outputs"]]
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def compared(output: dict[str, Any]) -> dict[str, Any]:
    data = output.get("data", {})
    if FIGURE not in data:
        return output
    layout = data[FIGURE]["layout"]
    axes = [layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
    points = {line["name"]: count(line["x"]) for line in data[FIGURE]["data"]}
    return {"axes": axes, "points": points}


def count(values: Any) -> int:
    """plotly writes numbers as a list, or as the bytes of an array."""
    if isinstance(values, dict):
        return len(values["bdata"]) * 3 // 4 // np.dtype(values["dtype"]).itemsize
    return len(values)


@pytest.mark.slow
def test_its_cells_still_come_to_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = tmp_path / "again.ipynb"
    script = Path(__file__).with_name("notebook.py")
    monkeypatch.setenv("NOTEBOOK_PICTURES", "0")
    made = warm.run([str(script), str(NOTEBOOK), str(again)], tmp_path)
    assert made.returncode == 0, made.stderr
    stored = outputs_of(NOTEBOOK)
    for number, (shown, now) in enumerate(zip(stored, outputs_of(again), strict=True), start=1):
        assert now == shown, f"cell {number}: write the notebook anew (CONTRIBUTING.md)"
    figures = [output for outputs in stored for output in outputs if "points" in output]
    assert [figure["axes"] for figure in figures] == 2 * [["Batch size", "Steps to goal"]]
    assert figures[0]["points"]["sgd"] == 5
