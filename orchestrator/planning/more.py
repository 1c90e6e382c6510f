"""The key `more`: additional trials and repeats for some studies of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field, model_validator

from orchestrator.planning.parts import MOST_ITEMS, FolderName, Part, Size
from orchestrator.programs.commands import has_seed
from orchestrator.records import BadInput, Study
from orchestrator.search import MOST_POINTS


class More(Part):
    """Studies of a sweep that have more trials or repeats than the others."""

    workloads: list[FolderName] = Field(
        default=[], max_length=MOST_ITEMS, examples=[["digits/mlp"]]
    )
    """The workloads of these studies, by name. Default: all of the sweep."""
    recipes: list[FolderName] = Field(default=[], max_length=MOST_ITEMS, examples=[["sgd"]])
    """The recipes of these studies, by name. Default: all of the sweep."""
    batch_sizes: list[Size] = Field(min_length=1, max_length=MOST_ITEMS, examples=[[256, "full"]])
    """The batch sizes of these studies. The sweep must have each of them."""
    trials: int | None = Field(default=None, ge=1, le=MOST_POINTS, examples=[40])
    """Points that do not diverge, in place of `search.trials`; not fewer than that. Default: as the
    search of the recipe or sweep has it."""
    repeats: int | None = Field(default=None, ge=0, le=MOST_POINTS, examples=[15])
    """Repeats, in place of the sweep's `repeats`; not fewer than that. Default: as the sweep has
    it."""

    @model_validator(mode="after")
    def _something(self) -> More:
        if self.trials is None and self.repeats is None:
            raise ValueError("give `trials`, `repeats` or both")
        return self

    def names(self, study: Study, size: int | str) -> bool:
        """Whether the entry applies to this study, whose batch size the sweep gives as `size`."""
        return (
            study.batch_size == (study.train_size if size == "full" else size)
            and study.workload in (self.workloads or [study.workload])
            and study.recipe in (self.recipes or [study.recipe])
        )


def with_more(study: Study, more: Sequence[More]) -> Study:
    """The study with the most trials and repeats that any entry gives it."""
    most = {"trials": study.trials, "repeats": study.repeats}
    seedless = study.program is not None and not has_seed(study.program)
    ignored = {"trials": study.is_one_point, "repeats": seedless}
    for number, entry in enumerate(more):
        if any(entry.names(study, size) for size in entry.batch_sizes):
            for name, asked in (("trials", entry.trials), ("repeats", entry.repeats)):
                if asked is not None and not ignored[name]:
                    _check(study, name, asked, f"more.{number}.{name}")
                    most[name] = max(most[name], asked)
    if most["repeats"] == 1 and study.repeat_best > 1 and not study.is_one_point:
        raise BadInput(
            f"repeats: one repeat can't choose among the best {study.repeat_best} trials and judge "
            f"one of them, too, but {study.key} has one. Give 2 or more, or leave out `of`.",
            code="not-together",
        )
    keep = max(study.keep, study.repeat_best if most["repeats"] else 1)
    return replace(study, trials=most["trials"], repeats=most["repeats"], keep=keep)


def refuse_unmatched(more: Sequence[More], studies: Sequence[Study]) -> None:
    """Raises `BadInput` for batch sizes that no study of the entry's workloads and recipes has."""
    for number, entry in enumerate(more):
        for size in entry.batch_sizes:
            if any(entry.names(study, size) for study in studies):
                continue
            present = {s.batch_size for s in studies if entry.names(s, s.batch_size)}
            raise BadInput(
                f"more.{number}.batch_sizes: each must be a batch size of the sweep, but got "
                f"{size}. These workloads and recipes have "
                f"{', '.join(map(str, sorted(present)))}: take one of them, or add {size} to "
                f"`batch_sizes`."
            )


def _check(study: Study, name: str, asked: int, where: str) -> None:
    """Raises `BadInput` if a study can't have so many trials or repeats."""
    least, launches = getattr(study, name), study.search.launches
    if name == "trials" and study.search.algorithm == "points":
        raise BadInput(
            f"{where}: a study whose points are listed can't have other numbers of trials, but "
            f"{study.key} lists {len(study.search.points)}. Add points to its search, or name "
            f"other recipes in `recipes`."
        )
    if name == "trials" and launches is not None and asked > launches:
        raise BadInput(
            f"{where}: it must be at most `search.max_launches`, but {study.key} may launch "
            f"{launches} trials, and got {asked}. Raise search.max_launches."
        )
    if asked < least:
        raise BadInput(
            f"{where}: it must be at least {least}, as {study.key} has {least} without it, but got "
            f"{asked}. Leave it out, or give {least} or more."
        )
