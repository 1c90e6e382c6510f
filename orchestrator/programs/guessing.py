"""Guesses how a program takes its numbers, from its help, and what it prints, from its output. A
user checks them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.programs.commands import BATCHES, PLACEHOLDER

NAMES = {
    "learning_rate": "learning_rate lr base_lr max_lr peak_lr init_lr initial_lr",
    "batch_size": "global_batch_size total_batch_size train_batch_size batch_size batch bs",
    "batch_size_per_device": "per_device_train_batch_size per_gpu_train_batch_size "
    "per_device_batch_size batch_size_per_device batch_size_per_gpu device_batch_size "
    "local_batch_size micro_batch_size micro_batch mbs",
    "accumulation_steps": "gradient_accumulation_steps grad_accumulation_steps grad_accum_steps "
    "accumulation_steps accum_steps accumulate_grad_batches gradient_accumulation grad_accum accum",
    "seed": "seed random_seed rng_seed seed_everything",
    "folder": "output_dir out_dir output_folder save_dir checkpoint_dir",
    "steps": "max_steps num_steps max_iters num_iters num_iterations max_train_steps train_steps "
    "num_train_steps training_steps train_iters total_steps n_steps n_iters steps iters iterations",
}
"""Placeholder -> names that programs give it, the clearest one first."""

OF_OTHERS = re.compile(r"val|test|log|save|warm|sched|decay")
"""What stands before the dot in options that only look like the above."""

OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*\w")
DEFAULT = re.compile(r"defaults?(?: to|:|=| is)?\s*([\d.]+(?:e[-+]?\d+)?)")
SETTING = re.compile(r"^( *)([A-Za-z]\w*):[ \t]*(\S*)", re.MULTILINE)

NUMBER = r"[-+.\de]*\d|nan|inf"
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
LOSS = re.compile(r"loss|nll|perplexity|ppl|bpb|error|wer\b|mse|mae")
UPWARD = re.compile(r"acc(?!um)|f1\b|bleu|score|reward|auc")


@dataclass(frozen=True)
class Guess:
    """How a command takes a number."""

    option: str
    """What stands before the number: `--lr ` or `optim.lr=`."""
    default: float | None = None


def in_help(text: str) -> list[Guess]:
    """All options of a help."""
    found = list(OPTION.finditer(text))
    ends = [*(each.start() for each in found), len(text)][1:]
    return [
        _guess(f"{each[0]} ", default[1] if default else "")
        for each, end in zip(found, ends, strict=True)
        for default in [DEFAULT.search(text, each.end(), end)]
    ]


def in_settings(text: str) -> list[Guess]:
    """The settings that Hydra prints as its help, in YAML."""
    found, above = list[Guess](), list[tuple[int, str]]()
    for indent, name, value in SETTING.findall(text):
        above = [each for each in above if each[0] < len(indent)] + [(len(indent), name)]
        found.append(_guess(".".join(part for _, part in above) + "=", value))
    return found


def _guess(option: str, default: str) -> Guess:
    with suppress(ValueError):
        return Guess(option, float(default))
    return Guess(option)


def chosen(options: Sequence[Guess], program: str) -> dict[str, Guess]:
    """Placeholder -> the option that fits it best, for those that the program does not have."""
    best: dict[str, Guess] = {}
    for meaning, names in NAMES.items():
        ranked = []
        for guess in options:
            name = guess.option.strip("-= ").lower().replace("-", "_")
            within, _, last = name.rpartition(".")
            if last in names.split() and not OF_OTHERS.search(within):
                # A help may mention an option before it explains it.
                rank = (names.split().index(last), within.count("."), guess.default is None)
                ranked.append((rank, guess))
        if ranked:
            best[meaning] = min(ranked, key=lambda each: each[0])[1]
    given = {*PLACEHOLDER.findall(program)}
    if given & {*BATCHES}:
        given |= {"batch_size", "batch_size_per_device"}
    best = {meaning: guess for meaning, guess in best.items() if meaning not in given}
    if {"accumulation_steps", "batch_size"} <= best.keys() and "batch_size_per_device" not in best:
        # Then it is mostly that of a pass. On one device it makes no difference.
        best["batch_size_per_device"] = best.pop("batch_size")
    return best


def completed(program: str, values: Iterable[tuple[Guess, str]]) -> str:
    """The command with these values, in place of those that it has for the same options."""
    for guess, value in values:
        own = rf"(?<!\S){re.escape(guess.option.strip('= '))}[ =]\S+"
        new = f"{guess.option}{value}"
        parts = re.split(own, program, maxsplit=1)
        program = new.join(parts) if len(parts) > 1 else f"{program} {new}"
    return program


@dataclass(frozen=True, kw_only=True)
class Printed:
    """How a program prints its numbers."""

    line: str
    """A line of its output."""
    pattern: str
    seen: Mapping[str, Sequence[float]]
    """Metric -> its values."""


def in_output(lines: Iterable[str]) -> Printed | None:
    """The kind of lines with a step and a metric that is most like a goal."""
    lines = list(lines)
    patterns = {found: line for line in reversed(lines) if (found := _pattern(line))}
    fits = [fit for pattern, line in patterns.items() if (fit := _tried(line, pattern, lines))]
    return min(fits, key=lambda fit: min(map(likeness, fit.seen)), default=None)


def _pattern(line: str) -> str:
    """A regular expression for a line and those like it; empty if it has no step or no metric."""
    step = STEP.search(line)
    if step is None:
        return ""
    parts = {step.start(): rf"\b{step[1]}\W*(?P<step>\d[\d,]*)"}
    names = {"step"}
    for found in NAMED.finditer(line):
        name = re.sub(r"\W+", "_", found[1].lower())
        if likeness(name) < NO_METRIC and name not in names:
            names.add(name)
            said = found[1].replace(".", r"\.")
            parts[found.start()] = rf"\b{said}\W+?(?P<{name}>{NUMBER})"
    return ".*?".join(parts[place] for place in sorted(parts)) if len(names) > 1 else ""


def _tried(line: str, pattern: str, lines: Sequence[str]) -> Printed | None:
    """What the pattern finds. None if that are no numbers, or if steps fall, as if they were
    counted anew in each epoch."""
    found = [match.groupdict() for each in lines if (match := re.search(pattern, each))]
    with suppress(ValueError):
        steps = [int(each.pop("step").replace(",", "")) for each in found]
        seen = {name: [float(each[name]) for each in found] for name in found[0]}
        if steps == sorted(steps):
            return Printed(line=line.strip(), pattern=pattern, seen=seen)
    return None


def in_reports(lines: Iterable[bytes]) -> dict[str, list[float]]:
    """Metric -> its values, as `orchestrator.report` writes them."""
    seen: dict[str, list[float]] = {}
    for line in lines:
        for name, value in json.loads(line).items():
            if name not in ("step", "time"):
                seen.setdefault(name, []).append(value)
    return seen


NO_METRIC = 8


def likeness(metric: str) -> int:
    """How little the name of a metric is like one of a goal: `NO_METRIC`, or less."""
    name = metric.lower()
    if not (loss := bool(LOSS.search(name))) and not UPWARD.search(name):
        return NO_METRIC
    return 4 * (not HELD_OUT.search(name)) + 2 * (not loss) + (bool(re.search("train|test", name)))


def goal_of(seen: Mapping[str, Sequence[float]]) -> str:
    """A goal for the metric that is most like one: the best value that was seen. Empty if nothing
    was."""
    known = {
        name: [each for each in values if math.isfinite(each)] for name, values in seen.items()
    }
    name = min((name for name, values in known.items() if values), key=likeness, default="")
    if not name:
        return ""
    upward = likeness(name) < NO_METRIC and not LOSS.search(name.lower())
    best = (max if upward else min)(known[name])
    return f"{name} {'>' if upward else '<'} {best:.4g}"
