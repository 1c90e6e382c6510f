"""The keys of workloads that are more than a name: those of a program, and `scale`, a workload at
several sizes of whatever has a number."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, PositiveInt, TypeAdapter, model_validator

from orchestrator.planning.parts import MANY, MOST_ITEMS, FolderName, Part, Text
from orchestrator.programs.commands import OF_TRIAL, PLACEHOLDER, split
from orchestrator.records import LARGEST, BadInput, Goal, Heard, Program, Source, shown, wrong_value

LONGEST_COMMAND, MOST_OF_SCRIPT = 10_000, 1_000_000

SAME = ("arguments", "max_per_device", "tokens_per_example", "resumes", "every")
"""The keys that a `Program` has as they are."""

FUNCTION = ("{interpreter}", "-m", "orchestrator.programs.functions")
"""The command that calls a function; its place follows."""

EXAMPLES, DATA, OPTION = "examples", "data", "train_examples"
"""The variable of the training set's size, its name in `scales`, the option that sets it."""


def _pattern(text: str) -> str:
    try:
        names = re.compile(text).groupindex
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None
    if "step" not in names or len(names) < 2:
        raise ValueError(
            "it must name the group of the step, (?P<step>\\d+), and that of a metric, such as "
            "(?P<loss>\\S+)"
        )
    return text


class Metrics(Part):
    """Where the numbers of a program are, if it doesn't call `orchestrator.report`."""

    source: Source = Field(default="report", alias="from", examples=["stdout"])
    """`report`: the program calls `orchestrator.report`, or appends lines of JSON to the file that
    the variable ORCHESTRATE_REPORTS names. `stdout`: lines of its output. `jsonl`: lines of JSON in
    a file. `tensorboard`: event files in a folder."""
    pattern: Annotated[str, Field(max_length=LONGEST_COMMAND), AfterValidator(_pattern)] | None = (
        Field(default=None, examples=[r"step (?P<step>\d+).* val loss (?P<loss>\S+)"])
    )
    """With `from: stdout`, a regular expression with named groups: `step`, and a metric of each
    other name."""
    file: Text | None = Field(default=None, examples=["{folder}/log.jsonl"])
    """With `from: jsonl`, the file. It may hold placeholders, as the command may."""
    folder: Text | None = Field(default=None, examples=["{folder}/events"])
    """With `from: tensorboard`, the folder."""
    step: Text = Field(default="step", examples=["global_step"])
    """With `from: jsonl`, the key of the step."""

    @model_validator(mode="after")
    def _fitting(self) -> Metrics:
        needed = {"stdout": "pattern", "jsonl": "file", "tensorboard": "folder"}
        for source, name in needed.items():
            given = getattr(self, name) is not None
            if given != (source == self.source):
                raise BadInput(
                    f"`{name}` goes with from: {source}, and only with it",
                    code="no-effect" if given else "missing-key",
                )
        if self.step != "step" and self.source != "jsonl":
            raise BadInput("`step` goes with from: jsonl, and only with it", code="no-effect")
        path = self.file or self.folder
        if path is not None and "{folder}" not in path:
            raise BadInput(
                f"{path!r} must be in {{folder}}, the trial's own, or what another trial wrote "
                f"would be heard",
                code="wrong-value",
            )
        return self

    @property
    def heard(self) -> Heard:
        path = self.file or self.folder or ""
        return Heard(source=self.source, pattern=self.pattern or "", place=path, step=self.step)


def goal_text(text: str) -> str:
    return str(Goal.parse(text))


Command = (
    Annotated[str, Field(min_length=1, max_length=LONGEST_COMMAND)]
    | Annotated[list[str], Field(min_length=1, max_length=1000)]
)


class ProgramWorkload(Part):
    """A program, or a Python function, that trains one trial."""

    program: Annotated[Command | None, Field(union_mode="left_to_right")] = Field(
        default=None, examples=["torchrun train.py --lr {learning_rate} --batch-size {batch_size}"]
    )
    """The command, as a line or as a list of arguments, with placeholders in braces. No shell reads
    it."""
    function: Text | None = Field(default=None, examples=["train.py:main"])
    """A Python function in place of a command. It is called with the trial, in a process of its own
    for each device."""
    name: Annotated[FolderName | None, Field(examples=["my_gpt"])] = None
    """What tables, figures and folders call it. Default: the name of the function."""
    goal: Annotated[Text, AfterValidator(goal_text)] | None = Field(
        default=None, examples=["loss < 3.3"]
    )
    """What a trial must reach, unless the sweep has `goals`. Metrics have the names that the
    program gives them."""
    metrics: Metrics = Metrics()
    """Where its numbers are."""
    examples: int | None = Field(default=None, ge=1, le=MANY**2, examples=[9_000_000])
    """Size of the training set, for epochs and the full batch."""
    arguments: dict[Text, Text] = Field(
        default={}, max_length=MOST_ITEMS, examples=[{"learning_rate": "optim.lr"}]
    )
    """Names of options in `{args}` that differ from the names here. An entry for `batch_size`,
    `seed` or `steps` adds it to `{args}`."""
    max_per_device: int | None = Field(default=None, ge=1, le=MANY, examples=[16])
    """The most examples that a device takes at once. `{batch_size_per_device}` is then at most
    this, and `{accumulation_steps}` says over how many passes a device accumulates its gradient."""
    tokens_per_example: int | None = Field(default=None, ge=1, le=MANY, examples=[1024])
    """Tokens of an example, for `{batch_tokens}`."""
    launch: Literal["once", "ranks"] | None = Field(default=None, examples=["ranks"])
    """`once`: the command starts the processes of its devices itself, on one machine. `ranks`: it
    is started for each device, on one machine or several, with RANK, WORLD_SIZE and so on as
    torchrun sets them. Default: `once` for a command, `ranks` for a function."""
    resumes: bool = Field(default=False, examples=[True])
    """Whether the program goes on from what it finds in `{folder}`. Without it, a trial that was
    interrupted begins anew. Such a program must report a step before it saves its state."""
    every: int | None = Field(default=None, ge=1, le=MANY, examples=[250])
    """The least number of steps between two reports. Trials that can't win end earlier with it."""

    @model_validator(mode="after")
    def _one(self) -> ProgramWorkload:
        if (self.program is None) == (self.function is None):
            raise BadInput("give `program` or `function`, one of them", code="not-together")
        if self.function is None and self.name is None:
            raise BadInput("a program needs a `name` for its run's folders", code="missing-key")
        if self.function is not None and self.metrics.source == "stdout":
            raise BadInput("a function reports by trial.report", code="no-effect")
        return self

    @property
    def files(self) -> list[str]:
        """The scripts of the command, as places of code: they, and Python files beside them, travel
        to other machines. Larger files are data."""
        # Unlike Path.is_file, os.path.isfile takes a text that is too long for the name of a file.
        scripts = [each for each in self.as_program().command if os.path.isfile(each)]
        return [f"{Path(each)}:" for each in scripts if os.path.getsize(each) < MOST_OF_SCRIPT]

    def as_program(self) -> Program:
        of_function = self.function is not None
        return Program(
            command=(*FUNCTION, self.function or "") if of_function else split(self.program or ""),
            function=self.function or "",
            launch=self.launch or ("ranks" if self.function else "once"),
            heard=self.metrics.heard,
            **{name: getattr(self, name) for name in SAME},
        )


def named(entries: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The workloads of a document as names, and those that are programs by their names."""
    names, programs = list[Any](), dict[str, Any]()
    for entry in entries:
        name = entry
        if isinstance(entry, dict):
            name = entry.get("name") or entry.get("function")
            if not isinstance(name, str):
                raise BadInput(
                    f"a workload in braces needs a `name` beside `program`, or a `function`, but "
                    f"got {shown(entry)}",
                    code="missing-key",
                )
            programs[name] = entry
        names.append(name)
    return names, programs


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) and value <= MANY**2 else value


Number = Annotated[float, Field(gt=0, le=LARGEST), AfterValidator(_plain)]

FEW = Field(min_length=1, max_length=MOST_ITEMS)


class Scale(Part):
    """A workload at several sizes: one for each combination of the values."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[list[Number], FEW]] = Field(init=False)

    workload: str | dict[str, Any] = Field(examples=["mine.py:GPT?width={width}"])
    """A workload with a placeholder in braces for each variable, in its options or its command.
    Beside it, each variable has the list of its values: `width: [64, 128, 256]`."""
    examples: Annotated[list[PositiveInt], FEW] | None = Field(
        default=None, examples=[[10000, 40000]]
    )
    """Sizes of the training set. A program needs a placeholder for it, a class does not."""


def expanded(given: Any) -> tuple[list[Any], dict[str, dict[str, float]]]:
    """The workloads that `scale` stands for, as listed, and workload -> variable -> its value."""
    if not isinstance(given, dict):
        raise wrong_value("`scale`", "{workload: NAME, VARIABLE: [...]}", given)
    scale = TypeAdapter(dict[str, Scale]).validate_python({"scale": given})["scale"]
    entry, sizes = scale.workload, {**(scale.model_extra or {})}
    if scale.examples is not None:
        sizes[EXAMPLES] = scale.examples
        if isinstance(entry, str) and f"{{{EXAMPLES}}}" not in entry:
            entry += f"{'&' if '?' in entry else '?'}{OPTION}={{{EXAMPLES}}}"
        if isinstance(entry, dict) and EXAMPLES in entry:
            raise BadInput("`examples` is in both `scale` and its workload", code="given-twice")
    text = json.dumps(entry, default=str)
    _check(sizes, PLACEHOLDER.findall(text))
    workloads, scales = [], {}
    for values in product(*sizes.values()):
        at = dict(zip(sizes, values, strict=True))
        name = one = _filled(text, at)
        if isinstance(one, dict):
            options = "&".join(f"{key}={size!r}" for key, size in at.items())
            name = f"{one.get('name') or ''}?{options}"
            one |= {"name": name, **({EXAMPLES: at[EXAMPLES]} if EXAMPLES in at else {})}
        workloads.append(one)
        scales[name] = {DATA if key == EXAMPLES else key: size for key, size in at.items()}
    return workloads, scales


def _filled(text: str, at: Mapping[str, float]) -> Any:
    """What the text says in JSON with these placeholders filled; others are those of trials."""
    return json.loads(PLACEHOLDER.sub(lambda of: str(at.get(of[1], of[0])), text))


def _check(sizes: Mapping[str, Sequence[float]], found: Collection[str]) -> None:
    """Raises `BadInput` for variables that change nothing or mean something else."""
    if (count := math.prod(map(len, sizes.values()))) > MOST_ITEMS:
        raise BadInput(
            f"scale: at most {MOST_ITEMS} workloads, but it comes to {count:,}: give fewer values",
            code="too-many",
        )
    for name in sizes:
        if name not in found:
            raise BadInput(
                f"scale: {name!r} makes no difference: write {{{name}}} into the workload, as an "
                f"option of a class or an argument of a command",
                code="no-effect",
            )
        if name in OF_TRIAL or (name == DATA and EXAMPLES in sizes):
            raise BadInput(f"scale: {name!r} is something else here: rename it", code="given-twice")
