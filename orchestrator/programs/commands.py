"""The command of a trial: placeholders of a program are replaced by the numbers of the trial."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.records import (
    BadInput,
    Study,
    Trial,
    Value,
    counted,
    refuse_unknown,
    shown,
    wrong_value,
)
from orchestrator.records.studies import Program

PLACEHOLDER = re.compile(r"\$?\{(\w+)\}")

PROCESSES = re.compile(r"(--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus)[ =])(\d+)(?!\S)")
"""How launchers are told the number of their processes."""

LISTS = ("args", "args_no_hyphens")
"""Placeholders that stand for several arguments."""

BATCHES = ("batch_size", "batch_size_per_device", "batch_tokens")
"""Placeholders of which a command needs one, or its trials would all have the same batch size."""

OF_TRIAL = (*BATCHES, "accumulation_steps", "seed", "steps", "devices", "folder")
"""Placeholders that every program may use, and that `arguments` may name."""

OTHERS = ("args_json", "interpreter")


def split(command: str | Sequence[str]) -> tuple[str, ...]:
    """The arguments of a command that may be written as a line. No shell ever reads it."""
    if not isinstance(command, str):
        return tuple(command)
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise wrong_value("A command", f"a line as for a shell ({error})", command) from None


def placeholders(*texts: str) -> set[str]:
    return {name for text in texts for name in PLACEHOLDER.findall(text)}


def mentioned(program: Program, params: Mapping[str, Value]) -> set[str]:
    """The names that the command mentions, also those within its lists of arguments."""
    found = placeholders(*program.command)
    if found & {*LISTS, "args_json"}:
        found |= {*params, *program.arguments}
    return found


def has_seed(program: Program) -> bool:
    """Whether the seed is among its arguments, so that a repeat is another training."""
    return bool(program.function) or "seed" in mentioned(program, {})


def check_command(study: Study, devices: int, params: Mapping[str, Value]) -> None:
    """Raises `BadInput` if the command can't train trials with these metaparameters."""
    program = study.the_program
    place = placeholders(program.heard.place)
    refuse_unknown("placeholder of `metrics`", sorted(place), [*params, *OF_TRIAL])
    if program.heard.pattern:
        metrics = {*re.compile(program.heard.pattern).groupindex} - {"step"}
        kind = "metric of a goal, which no group of the pattern of `metrics` names:"
        refuse_unknown(kind, sorted(goal.metric for goal in study.goals), metrics)
    if program.function:
        return
    if clash := sorted({*params} & {*OF_TRIAL, *LISTS, *OTHERS}):
        raise BadInput(
            f"A metaparameter can't be called {clash[0]!r}, which is a placeholder of every "
            f"program. Give it another name, and the program's own under `arguments`.",
            code="given-twice",
        )
    known = [*params, *OF_TRIAL, *LISTS, *OTHERS]
    space = f"recipe {study.recipe!r}, whose `space` names {', '.join(params) or 'nothing'}"
    kind = f"placeholder of the command for {space}:"
    refuse_unknown(kind, sorted(placeholders(*program.command)), known)
    named = [*params, *OF_TRIAL]
    refuse_unknown("metaparameter under `arguments`", sorted(program.arguments), named)
    names = [program.arguments.get(name, name) for name in {*params, *program.arguments}]
    if twice := sorted(name for name in names if names.count(name) > 1):
        raise BadInput(f"Two of `arguments` would be called {twice[0]!r}.", code="given-twice")
    for argument in program.command:
        if placeholders(argument) & {*LISTS} and not PLACEHOLDER.fullmatch(argument):
            raise wrong_value("{args} in a command", "an argument of its own", argument)
    said = mentioned(program, params)
    if missing := sorted({*params} - said):
        raise BadInput(
            f"The command never mentions {missing[0]!r}, so it would make no difference. Write "
            f"{{{missing[0]}}} where the program takes it, or {{args}} for all metaparameters, or "
            f"leave it out of `space`.",
            code="no-effect",
        )
    if not said & {*BATCHES}:
        raise BadInput(
            "The command never mentions the batch size. Write {batch_size}, the examples of a step "
            "over all devices, {batch_size_per_device} or {batch_tokens} where the program takes "
            "it.",
            code="no-effect",
        )
    if program.max_per_device and "accumulation_steps" not in said:
        raise BadInput(
            "max_per_device divides the batch of a device into passes, but the command never "
            "mentions {accumulation_steps}. Write it where the program takes it, or leave "
            "max_per_device out.",
            code="no-effect",
        )
    if "batch_tokens" in said and not program.tokens_per_example:
        raise BadInput(
            "{batch_tokens} needs tokens_per_example, the length of an example.", code="missing-key"
        )
    if {"batch_size_per_device", "accumulation_steps"} & (said | place):
        passes(study, devices)
    _check_processes(study, devices)


def _check_processes(study: Study, devices: int) -> None:
    starts = PROCESSES.search(" ".join(study.the_program.command))
    if starts and study.the_program.launch == "once" and int(starts[2]) != devices:
        raise BadInput(
            f"The command starts {starts[2]} processes ({starts[0]}), but at batch size "
            f"{study.batch_size:,} a trial has {counted(devices, 'device')}, by which its batch is "
            f"divided. Write {{devices}} for the number, and say how many a trial gets: "
            f"`resources: {{examples_per_device: 1, max_devices: {starts[2]}}}`.",
            code="wrong-value",
        )


def passes(study: Study, devices: int) -> int:
    """Number of passes over which each device accumulates its gradient. Raises `BadInput` if the
    batch can't be divided evenly, since the program would train with another one."""
    program, size = study.the_program, study.batch_size
    most = program.max_per_device or size
    each, rest = divmod(size, devices)
    for count in range(math.ceil(each / most), each + 1) if not rest else ():
        if each % count == 0:
            return count
    raise BadInput(
        f"Batch size {size:,} can't be divided evenly over {devices} devices. Choose batch sizes "
        f"that are multiples of {devices}, or other `resources`.",
        code="wrong-value",
    )


def values_of(trial: Trial, devices: int, folder: Path) -> dict[str, Value]:
    """Placeholder -> what it stands for in this trial."""
    study, program = trial.study, trial.study.the_program
    found: dict[str, Value] = {
        **trial.params,  # those of a function may have any names
        "batch_size": study.batch_size,
        "batch_tokens": study.batch_size * (program.tokens_per_example or 0),
        "seed": trial.seed % 2**31,  # many scripts take no larger ones
        "steps": study.budget_steps,
        "devices": devices,
        "folder": str(folder),
        "interpreter": sys.executable,
    }
    said = mentioned(program, trial.params) | placeholders(program.heard.place)
    if {"batch_size_per_device", "accumulation_steps"} & said:
        count = passes(study, devices)
        found["accumulation_steps"] = count
        found["batch_size_per_device"] = study.batch_size // devices // count
    return found


def arguments_of(trial: Trial, devices: int, folder: Path) -> list[str]:
    """The arguments of a trial's process. A value stays within its own, whatever it holds."""
    program, values = trial.study.the_program, values_of(trial, devices, folder)
    names = [*trial.params, *(name for name in program.arguments if name not in trial.params)]
    named = {program.arguments.get(name, name): values[name] for name in names}
    plain = [f"{name}={written(value)}" for name, value in named.items()]
    whole = {"args": [f"--{each}" for each in plain], "args_no_hyphens": plain}
    values["args_json"] = json.dumps(named)
    found: list[str] = []
    for argument in program.command:
        match = PLACEHOLDER.fullmatch(argument)
        several = whole.get(match[1]) if match else None
        found += [filled(argument, values)] if several is None else several
    return found


def filled(text: str, values: Mapping[str, Value]) -> str:
    """The text with each placeholder replaced."""
    return PLACEHOLDER.sub(lambda match: written(values[match[1]]), text)


def written(value: Value) -> str:
    if isinstance(value, float):  # YAML takes 1e-05 for a text
        return re.sub(r"^(-?\d)e", r"\1.0e", str(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def search_path() -> str:
    """Where programs are looked for: first beside the Python that runs this, as in an activated
    environment, even if nobody has activated it."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def check_files(command: Sequence[str]) -> None:
    """Raises `BadInput` if the program, or a script among its arguments, isn't there."""
    first, *fixed = [None if PLACEHOLDER.search(part) else part for part in command]
    if first is not None and shutil.which(first, path=search_path()) is None:
        hint = (
            "No shell reads it: `env NAME=VALUE ...` sets variables, [sh, -c, ...] does the rest."
        )
        if first.endswith(".py"):
            hint = f"Did you mean `python {first} ...`?"
        raise BadInput(f"There is no program {shown(first)}. {hint}", code="missing-file")
    file = next((part for part in fixed if part and re.fullmatch(r"[^-=]+\.(py|sh)", part)), None)
    # Others may look for it elsewhere: `env -C`, `uv run --directory` or a container's files.
    words = (part for part in [first, *fixed] if part and part != "env" and "=" not in part)
    looks_here = re.match(r"(.*/)?(python|torchrun|accelerate|(ba)?sh$)", next(words, ""))
    if file is not None and looks_here and not Path(file).is_file():
        raise BadInput(
            f"There is no file {shown(file)}, seen from {Path.cwd()}.", code="missing-file"
        )
