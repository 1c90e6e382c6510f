"""Runs the code cells of a notebook as Jupyter does, without Jupyter, and stores what they show.

    .venv/bin/python tests/notebook.py docs/notebook.ipynb [OUT]

It works in an empty folder, so that nothing is left behind but the notebook, written anew. Figures
are stored twice, for Jupyter and as a picture for GitHub; the latter needs Chromium. What goes to
standard error is progress, which is another one every time, and is not stored.
"""

import ast
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from pprint import pformat
from types import ModuleType
from typing import Any

PICTURES = "NOTEBOOK_PICTURES"
"""The variable that says no (0) to pictures of figures."""


def run(notebook: dict[str, Any]) -> None:
    """Replaces what the cells have shown by what they show now."""
    main = ModuleType("__main__")
    sys.modules["__main__"] = main  # where workers look for classes of a notebook
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, start=1):
        cell["execution_count"] = number
        printed, value = _run_cell("".join(cell["source"]), vars(main))
        cell["outputs"] = []
        if printed:
            lines = printed.splitlines(keepends=True)
            cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": lines})
        if value is not None:
            cell["outputs"].append(
                {
                    "output_type": "execute_result",
                    "execution_count": number,
                    "metadata": {},
                    "data": _shown(value),
                }
            )


def _run_cell(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """What a cell prints, and the value of the expression at its end, if it ends with one."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        exec(compile(tree, "<cell>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last else None
    return printed.getvalue(), value


def _shown(value: Any) -> dict[str, Any]:
    """A value in all the ways that it can show itself, by MIME type."""
    if hasattr(value, "_repr_mimebundle_"):
        bundle: dict[str, Any] = value._repr_mimebundle_(None, None)
        return bundle
    shown = {"text/plain": pformat(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        shown["text/html"] = value._repr_html_().splitlines(keepends=True)
    return shown


if __name__ == "__main__":
    file = Path(sys.argv[1]).resolve()
    out = Path(sys.argv[-1]).resolve()
    pictures = "" if os.environ.get(PICTURES) == "0" else "+png"
    os.environ["PLOTLY_RENDERER"] = f"plotly_mimetype{pictures}"
    found = json.loads(file.read_text())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run(found)
    out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
