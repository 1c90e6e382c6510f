"""The command `init`: it writes files to start from."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.cli.options import refuse_both
from orchestrator.cli.terminal import say
from orchestrator.records import BadInput, Value, cut, escaped, refuse_unknown, wrong_value

if TYPE_CHECKING:
    from orchestrator.programs.starting import Exit

STARTERS = Path(__file__).parent.parent / "starters"

KINDS = {
    "classification": {"OPTIMIZER": "sgd", "RATE": "0.5", "METRIC": "val/loss"},
    "regression": {"OPTIMIZER": "adam", "RATE": "0.01", "METRIC": "val/square"},
    "language": {"OPTIMIZER": "adam", "RATE": "0.01", "METRIC": "val/loss"},
}
LONGEST = 100


def init(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Name of the files.")] = "mine",
    kind: Annotated[
        Literal["classification", "regression", "language"] | None,
        typer.Option(help="Kind of task that the workload trains for. Default: classification."),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Command that trains, such as 'torchrun train.py'. A sweep file for it is written "
            "in place of a workload. What it needs is guessed: the command runs with --help, then "
            "for some seconds.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="Most seconds that each run of the command may take.")
    ] = 20,
    slurm: Annotated[
        bool,
        typer.Option("--slurm", help="Write a script for sbatch, which trains any sweep file."),
    ] = False,
) -> None:
    """Write a workload, a sweep file and a test to start from. They train as they are written. With
    --program, write a sweep file for a program, and with --slurm, a script for Slurm."""
    given, name = name, name.replace("-", "_")
    if not name.isidentifier() or len(name) > LONGEST:
        rule = f"up to {LONGEST} letters, digits and underscores, with no digit first"
        raise wrong_value("NAME", rule, given)
    refuse_both({"slurm": slurm}, {"kind": kind, "program": program})
    refuse_both({"program": program}, {"kind": kind})
    if slurm:
        _for_slurm(name)
        return
    if program is not None:
        _for_program(name, program, seconds)
        return
    kind = kind or "classification"
    if iskeyword(name) or (find_spec(name) and not Path(f"{name}.py").exists()):
        raise BadInput(
            f"NAME must be no word or module of Python, which {name}.py would hide, but is "
            f"{given!r}. Give another one.",
            code="exists",
        )
    files = {
        Path(f"{name}.py"): kind,
        Path(f"{name}.yaml"): "sweep",
        Path(f"test_{name}.py"): "test",
    }
    for file in files:
        _check_new(file)
    made = "".join(word.capitalize() for word in name.split("_"))
    if not made.isidentifier() or iskeyword(made):
        made = "Mine"
    words = {"NAME": name, "CLASS": made, **KINDS[kind]}
    for file, starter in files.items():
        file.write_text(_filled(starter, words))
    schema = _write_schema()
    say(
        f"Written: {', '.join([*map(str, files), schema])}. Next:\n"
        f"  orchestrate trial {name}.py:{made} --optimizer {words['OPTIMIZER']} --batch-size 32 "
        f"--set learning_rate={words['RATE']}\n"
        f"  orchestrate sweep {name}.yaml"
    )


def _for_slurm(name: str) -> None:
    """Writes a script for sbatch, with which the job finds this installation."""
    file = Path(f"{name}.sbatch")
    _check_new(file)
    file.write_text(_filled("slurm", {"NAME": name, "BIN": str(Path(sys.executable).parent)}))
    say(f"Written: {file}. Edit its lines marked EDIT, then:\n  sbatch {file} my_sweep.yaml")


def _filled(starter: str, words: Mapping[str, str]) -> str:
    """A starter with each of these words replaced, but not within what replaces another."""
    text = (STARTERS / f"{starter}.txt").read_text()
    return re.sub("|".join(words), lambda word: words[word[0]], text)


def _check_new(file: Path) -> None:
    if file.exists():
        raise BadInput(f"{file} exists already. Give another NAME.", code="exists")


def _write_schema() -> str:
    """Writes the file that the first line of a sweep file names."""
    from orchestrator.planning.schema import SCHEMA_FILES
    from orchestrator.planning.sweep_file import SWEEPS

    schema = SCHEMA_FILES["sweep"]
    Path(schema).write_bytes((SWEEPS / schema).read_bytes())
    return schema


SHORT = 200
"""Steps of the run of a program that shows what it prints."""

GUESSED = """\
  # What is in braces is guessed from its --help: check it. {batch_size} is the examples of a step
  # over all devices; if the program counts those of one, write {batch_size_per_device}. Each trial
  # has its own {folder}, which is removed later.
"""

TWO_WAYS = r"""
    # TODO: say its numbers. Either two lines in the script do so (for trainers of Hugging Face and
    # Lightning, `ReportCallback` of orchestrator.programs.huggingface or .lightning):
    #   from orchestrator import report
    #   if not report(step, {"val/loss": loss}): break
    # or `metrics`, a regular expression for lines of its output:
    # metrics: {from: stdout, pattern: 'step (?P<step>\d+).* val loss (?P<loss>\S+)'}
    # or, if it writes event files of TensorBoard:
    # metrics: {from: tensorboard, folder: '{folder}'}
    # goal: loss < 3.3"""

NEEDED = ("learning_rate", "batch_size", "seed", "steps")
"""Placeholders that nearly every command should have."""


def _for_program(name: str, program: str, seconds: float) -> None:
    """Writes a sweep file for a program, from what its help and a short run say."""
    from orchestrator.programs import commands, guessing

    file, program = Path(f"{name}.yaml"), program.strip()
    _check_new(file)
    if not program:
        raise wrong_value("--program", "a command", program)
    commands.check_files(commands.split(program))
    launched = commands.PROCESSES.search(program)
    ranks = int(launched[2]) if launched else 1
    program = commands.PROCESSES.sub(r"\1{devices}", program)
    say(f"Asking for its options, for up to {seconds:g} s: {program} --help")
    help_ = _run(f"{program} --help", seconds)[0]
    found = guessing.options_of(program, help_)
    options = {option: f"{{{placeholder}}}" for placeholder, option in found.items()}
    short = {option: value for option, value in options.items() if value in ("{folder}", "{steps}")}
    tried = guessing.completed(program, short)
    say(f"Running it for up to {seconds:g} s, to see what it prints: {tried}")
    output, exit_, reported = _run(tried, seconds)
    if exit_ is not None and exit_.code:
        say(f"That failed:\n{exit_.in_words}")
    given = {*found, *commands.PLACEHOLDER.findall(program)}
    given |= {"batch_size"} if given & {*commands.BATCHES} else set()
    missing = ", ".join(f"{{{needed}}}" for needed in NEEDED if needed not in given)
    todo = f"  # TODO: write {missing} where the command takes it.\n" if missing else ""
    own = {name: guessing.given(program, option) for name, option in found.items()}
    default = guessing.default_of(found.get("learning_rate", "--lr"), help_)
    rate = own.get("learning_rate") or default or 1e-3
    words = {
        "NAME": name,
        "GUESSES\n": (GUESSED if found else "") + todo,
        "COMMAND": _quoted(guessing.completed(program, options)),
        "METRICS": _numbers(output, reported),
        **_sizes(own, ranks, given),
        "LOWEST": f"{rate / 10:.1e}",
        "HIGHEST": f"{rate * 10:.1e}",
    }
    file.write_text(_filled("program", words))
    if exit_ is None:
        say(f"It was ended after {seconds:g} s. --seconds lets it train longer.")
    say(
        f"Written: {file}, {_write_schema()}. Comments in {file} say what is guessed, and what is "
        f"left for you. Next:\n"
        f"  orchestrate trial {file}\n  orchestrate plan {file}\n  orchestrate sweep {file}"
    )


def _sizes(own: Mapping[str, float | None], ranks: int, given: Collection[str]) -> dict[str, str]:
    """The lines about batch sizes and devices, from the numbers that the command has itself."""
    per_device, passes = own.get("batch_size_per_device"), own.get("accumulation_steps") or 1
    usual = per_device * passes * ranks if per_device else own.get("batch_size")
    first = int(usual or 8)
    first //= 4 if usual and first % (4 * ranks) == 0 else 1
    most = f"    max_per_device: {per_device or 16:g}  # examples that fit on a device: check"
    devices = f"resources: {{examples_per_device: 1, max_devices: {ranks if ranks > 1 else 8}}}\n"
    return {
        "MOST\n": f"{most if per_device else most.replace('max', '# max', 1)}\n"
        * ("accumulation_steps" in given),
        "BEYOND": "" if usual else "\n# TODO: take some around the one that you train with.",
        "SIZES": str([first * 2**times for times in range(4)]),
        "RESOURCES\n": ("" if ranks > 1 else "# Without it, a trial has one device.\n# ") + devices
        if "devices" in given
        else "",
    }


def _numbers(output: str, reports: Sequence[bytes]) -> str:
    """The keys that say where the numbers of a program are, with a goal if they are found."""
    from orchestrator.programs.guessing import goal_of, in_output

    if found := in_output([line.decode(errors="replace") for line in reports]):
        said, goal = "    # It calls orchestrator.report.", goal_of(found.said, found.values)
    elif found := in_output(re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*\w", "", output))):
        goal = goal_of(found.name, found.values)
        said = (
            f"    # Guessed from the line: {escaped(cut(found.line, 150))}\n"
            f"    metrics: {{from: stdout, pattern: {_quoted(found.pattern)}}}"
        )
    if not found or not goal:
        return TWO_WAYS.strip("\n")
    return (
        f"{said}\n    # TODO: take a harder goal, of a validation set: this is of a short run.\n"
        f"    goal: {goal}"
    )


def _quoted(text: str) -> str:
    """A text as YAML takes it anywhere."""
    return "'" + text.replace("'", "''") + "'"


def _run(program: str, seconds: float) -> tuple[str, Exit | None, list[bytes]]:
    """Runs a command for some seconds: its output, its end, if any, and its reports."""
    from orchestrator.programs.commands import PLACEHOLDER, filled, split
    from orchestrator.programs.hearing import Lines
    from orchestrator.programs.starting import Kept, Start

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as own:
        values: dict[str, Value] = {
            "devices": 1, "folder": own, "seed": 0, "steps": SHORT, "learning_rate": 1e-3,
            "batch_size": 8, "batch_size_per_device": 8, "accumulation_steps": 1,
        }  # fmt: skip
        refuse_unknown("placeholder of --program", PLACEHOLDER.findall(program), values)
        path = Path(folder)
        reports, output = path / "reports.jsonl", path / "output.txt"
        variables = {"ORCHESTRATE_REPORTS": str(reports), "ORCHESTRATE_STOP": str(path / "stop")}
        start = Start(
            command=[filled(part, values) for part in split(program)],
            environment=variables,
            log=str(output),
            reports=str(reports),
            lock=str(path / "lock"),
            patience=2,
        )
        with closing(Kept(start)) as kept:
            exit_ = kept.ended(seconds)
        return output.read_text(errors="replace"), exit_, list(Lines(reports).new(1))
