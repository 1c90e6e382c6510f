"""What `mkdocs build` does besides: pages that are made of other files, and links to such files."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import orchestrator

ROOT = Path(__file__).parent.parent

OUTSIDE = re.compile(r"\]\(\.\./([\w./-]+\.(?:py|json|sh|yaml))\)")
"""A link from a page to a file of the repository, which the site gets a copy of."""

RUN = re.compile(r"\]\(\.\./atlas/runs/(\w+)\.zip\)")
"""A link from a page to a run of the atlas, in whose place the site has the report."""

TABLE = re.compile(r"<table[^>]*>(.*?)</table>", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the notebook as a page, the files that pages link to, and reports of the atlas."""
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    files.append(File.generated(config, "notebook.md", content=notebook_page(notebook)))
    linked = {
        name
        for page in (ROOT / "docs").glob("*.md")
        for name in OUTSIDE.findall(page.read_text(encoding="utf-8"))
    }
    runs = set(RUN.findall((ROOT / "docs" / "findings.md").read_text(encoding="utf-8")))
    for name in sorted(runs):
        files.append(File.generated(config, f"atlas/{name}.html", content=_report_of(name)))
    for name in sorted(linked):
        files.append(File.generated(config, f"files/{name}", abs_src_path=str(ROOT / name)))
    return files


def _report_of(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        run = orchestrator.open_run(ROOT / "atlas" / "runs" / f"{name}.zip")
        page = run.report(f"{folder}/report.html")
        return Path(page).read_text(encoding="utf-8")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links to files outside of docs/ to their copies, and links to runs to reports."""
    markdown = OUTSIDE.sub(r"](files/\1)", markdown).replace("](notebook.ipynb)", "](notebook.md)")
    return RUN.sub(r"](atlas/\1.html)", markdown)


def notebook_page(notebook: dict[str, Any]) -> str:
    """A notebook with its output, as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
            parts += [_output(output) for output in cell["outputs"]]
    return "\n\n".join(parts)


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        image = "".join(data["image/png"]).replace("\n", "")
        return (
            f'<img alt="The figure that the cell above shows" src="data:image/png;base64,{image}">'
        )
    if "text/html" in data:
        # Without the notebook's styles, a table has those of the site.
        return "\n".join(
            f"<table>{rows}</table>" for rows in TABLE.findall("".join(data["text/html"]))
        )
    return f"```text\n{''.join(data['text/plain'])}\n```"
