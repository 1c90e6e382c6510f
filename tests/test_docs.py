"""What the documentation says, done word for word."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import orchestrate

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.slow
def test_your_own_workload_from_nothing(tmp_path: Path) -> None:
    text = (DOCS / "your-own-workload.md").read_text()
    files = re.findall(r"`([\w.]+)`:\n\n```(?:python|yaml)\n(.*?)```", text, re.DOTALL)
    commands = [
        line
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(files) == 3
    assert len(commands) == 4
    for name, content in files:
        (tmp_path / name).write_text(content)
        assert len(content.splitlines()) < 60
    for line in commands:
        program, *arguments = shlex.split(line)
        assert program == "orchestrate"
        result = orchestrate(*arguments, cwd=tmp_path)
        assert result.returncode == 0, (line, result.stderr)
    assert "reached" in result.stdout
    assert (tmp_path / "runs" / "tumours" / "report.html").exists()
