"""Guesses, for a user to check, how a program takes its numbers and prints its results."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.programs.commands import BATCHES, PLACEHOLDER

NAMES = {
    "learning_rate": "learning_rate lr base_lr max_lr peak_lr init_lr initial_lr eta0",
    "batch_size": "global_batch_size total_batch_size train_batch_size batch_size batch bs",
    "batch_size_per_device": "per_device_train_batch_size per_gpu_train_batch_size "
    "per_device_batch_size batch_size_per_device batch_size_per_gpu device_batch_size "
    "local_batch_size micro_batch_size micro_batch mbs",
    "accumulation_steps": "gradient_accumulation_steps grad_accumulation_steps grad_accum_steps "
    "accumulation_steps accum_steps accumulate_grad_batches gradient_accumulation grad_accum accum",
    "seed": "seed random_seed rng_seed seed_everything random_state",
    "folder": "output_dir out_dir output_folder save_dir checkpoint_dir default_root_dir",
    "steps": "max_steps num_steps max_iters num_iters num_iterations max_train_steps train_steps "
    "num_train_steps training_steps train_iters total_steps n_steps n_iters n_iter steps iters "
    "iterations",
}
"""Placeholder -> names that programs give it, the clearest one first."""

OF_OTHERS = re.compile(r"val|test|log|save|warm|sched|decay")
"""What stands before the dot in options that only look like the above."""

OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*\w")
DEFAULT = re.compile(r"(?i:defaults?(?: to|:|=| is)?\s*'?(\d*\.?\d+(?:e[-+]?\d+)?))")

NUMBER = r"(?i:[-+]?(?:\d+(?:,\d{3})*\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf)"
STEP = re.compile(
    r"(?<![\w./-])((?:(?:global|train(?:ing)?)[_ ])?(?:step|iter(?:ation)?|update)s?)\W*(\d[\d,]*)",
    re.IGNORECASE,
)
NAMED = re.compile(
    r"(?<![\w./-])((?:(?:train|val|eval|test|dev|valid)(?:ing|ation|uation)? )?[A-Za-z_][\w./-]*?)"
    rf"\W{{1,9}}?({NUMBER})(?![\w.]*\w)",
    re.IGNORECASE,
)
HELD_OUT = re.compile(r"val|eval|test|dev|held")
LOSS = re.compile(r"loss(?!_scal)|nll|perplexity|ppl|bpb|err(?:or|_|\b)|wer\b|mse|mae")
UPWARD = re.compile(r"acc(?!um)|f1\b|bleu|score|reward|auc")


def options_of(program: str, help_: str) -> dict[str, str]:
    """Placeholder -> the option that fits it best, for those that the command lacks."""
    named = {each: each.strip("-").lower().replace("-", "_") for each in OPTION.findall(help_)}
    given = {*PLACEHOLDER.findall(program)}
    if given & {*BATCHES}:
        given |= {"batch_size", "batch_size_per_device"}
    best: dict[str, str] = {}
    for meaning, names in NAMES.items():
        ranks = {}
        for option, name in named.items():
            within, _, last = name.rpartition(".")
            if last in names.split() and not OF_OTHERS.search(within):
                ranks[option] = (names.split().index(last), within.count("."))
        if ranks and meaning not in given:
            best[meaning] = min(ranks, key=lambda option: ranks[option])
    if {"accumulation_steps", "batch_size"} <= best.keys() and "batch_size_per_device" not in best:
        # Then it is mostly that of a pass. On one device it makes no difference.
        best["batch_size_per_device"] = best.pop("batch_size")
    return best


def given(program: str, option: str) -> float | None:
    """The number that the command itself gives for this option."""
    found = re.search(rf"(?<!\S){re.escape(option)}[ =]({NUMBER})(?!\S)", program)
    return float(found[1].replace(",", "")) if found else None


def default_of(option: str, help_: str) -> float | None:
    """The number that a help says is the default of this option."""
    spellings = "[-_]".join(map(re.escape, re.split("[-_]", option)))
    for said in re.split(rf"(?<![\w-]){spellings}(?![\w.-])", help_)[1:]:
        if (found := DEFAULT.search(OPTION.split(said)[0])) is not None:
            return float(found[1])
    return None


def completed(program: str, options: Mapping[str, str]) -> str:
    """The command with these options and their values, in place of those that it has itself."""
    for option, value in options.items():
        parts = re.split(rf"(?<!\S){re.escape(option)}[ =]\S+", program, maxsplit=1)
        new = f"{option} {value}"
        program = new.join(parts) if len(parts) > 1 else f"{program} {new}"
    return program


@dataclass(frozen=True, kw_only=True)
class Printed:
    """How a program prints the metric that is most like a goal."""

    line: str
    """A line of its output."""
    pattern: str
    said: str
    """The metric as it is printed."""
    name: str
    """The metric as its group in the pattern is called."""
    values: Sequence[float]


def in_output(lines: Sequence[str]) -> Printed | None:
    """The kind of lines with a step and a metric that is most like a goal."""
    kinds: dict[str, tuple[int, str, str, str]] = {}
    for line in lines:
        for metric in NAMED.finditer(line):
            said, step = metric[1], STEP.search(line)
            name = re.sub(r"\W+", "_", said.lower())
            if step is not None and (unlike := likeness(name)) < NO_METRIC:
                as_said = said.replace(".", r"\.")
                parts = {
                    step.start(): rf"\b{step[1]}\W*(?P<step>\d[\d,]*)",
                    metric.start(): rf"\b{as_said}\W+?(?P<{name}>{NUMBER})",
                }
                pattern = ".*?".join(parts[position] for position in sorted(parts))
                kinds.setdefault(pattern, (unlike, said, name, line.strip()))
    for pattern, (_, said, name, line) in sorted(kinds.items(), key=lambda kind: kind[1][0]):
        found = [match for each in lines if (match := re.search(pattern, each))]
        steps = [int(each["step"].replace(",", "")) for each in found]
        if steps == sorted(steps):  # else they are counted anew in each epoch
            values = [float(each[name].replace(",", "")) for each in found]
            return Printed(line=line, pattern=pattern, said=said, name=name, values=values)
    return None


NO_METRIC = 8


def likeness(metric: str) -> int:
    """How little the name of a metric is like one of a goal: `NO_METRIC`, or less."""
    name = metric.lower()
    if not (loss := bool(LOSS.search(name))) and not UPWARD.search(name):
        return NO_METRIC
    return 4 * (not HELD_OUT.search(name)) + 2 * (not loss) + (bool(re.search("train|test", name)))


def goal_of(metric: str, values: Sequence[float]) -> str:
    """A goal for this metric: the best value that was seen. Empty if none was."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    if LOSS.search(metric.lower()):
        return f"{metric} < {min(known):.4g}"
    return f"{metric} > {max(known):.4g}"
