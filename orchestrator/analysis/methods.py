"""A paragraph for papers: what was done, from what a run's files say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.analysis.estimates import CONFIDENCE
from orchestrator.analysis.points import beside_minima, curves_of, has_medians
from orchestrator.analysis.scaling import USEFUL_TOLERANCE
from orchestrator.analysis.words import ends_of, listed
from orchestrator.files.yaml_files import write_yaml
from orchestrator.records import Choice, Range, Study, Value, short
from orchestrator.results import FrontierRow, RunFiles


def methods_of(run: RunFiles, rows: Sequence[FrontierRow]) -> str:
    """Sentences on what was done, from what the run's files say. What a run of others did not write
    down is left out."""
    studies = run.studies()
    goals = dict.fromkeys(row.goal for row in rows)
    sizes = sorted({study.batch_size for study in studies})
    measured = f"measured the number of steps until {listed([*goals])} for" if goals else "ran"
    workloads = listed([*dict.fromkeys(study.workload for study in studies)])
    at = listed([f"{size:,}" for size in sizes])
    said = [f"We {measured} {workloads} at batch size{'s' * (len(sizes) > 1)} {at}."]
    if run.imported:
        said.append("The trainings were made elsewhere, and their files were imported.")
    elif "recipes" in (sweep := run.sweep()):
        said += [*_search(sweep, studies), *_trials(studies)]
    if goals:
        said += [_repeats([] if run.imported else studies, rows), _INTERVALS]
    said.append(_amount(run, studies))
    return " ".join(filter(None, said))


_INTERVALS = (
    f"Intervals hold {CONFIDENCE:.0%}. They combine the scatter of seeds, what other trials "
    f"would have found, the distance between measurements and the scatter about the curve, as far "
    f"as these are known, over all bends S_min (1 + (B_c / B)^a)^(1/a) that the points allow. "
    f"B_crit is that of the law with a = 1. A batch size is useful until steps lie within "
    f"{USEFUL_TOLERANCE:.0%} of the fewest."
)


def _search(sweep: Mapping[str, Any], studies: Sequence[Study]) -> list[str]:
    recipes = []
    for name in dict.fromkeys(study.recipe for study in studies):
        mine = sorted((s for s in studies if s.recipe == name), key=lambda s: s.batch_size)
        optimizer = "" if mine[0].optimizer in (name, "") else f" ({mine[0].optimizer})"
        entries = (f"{entry} {_ranges(entry, mine)}" for entry in mine[0].space)
        recipes.append(f"{name}{optimizer}: {', '.join(entries)}")
    schedules = {
        recipe["name"]: write_yaml(recipe["schedule"], flow=True).strip()
        for recipe in sweep["recipes"]
        if recipe["schedule"]
    }
    searches: dict[str, list[str]] = {}
    for recipe in sweep["recipes"]:
        search = recipe["search"] or sweep["search"]
        searches.setdefault(search["algorithm"], []).append(recipe["name"])
    how = " or ".join(f"{name} (for {listed(given)})" for name, given in searches.items())
    how = how if len(searches) > 1 else next(iter(searches))
    same = ", the same at all batch sizes" * (not any(s.search.is_adaptive for s in studies))
    return [
        f"At each batch size of each recipe, a {how} search with seed {sweep['seed']} tried "
        f"{ends_of([study.trials for study in studies])} points{same}.",
        f"The ranges were, for {'; '.join(recipes)}.",
        *(f"Schedule of {name}: {schedule}." for name, schedule in schedules.items()),
    ]


def _ranges(name: str, studies: Sequence[Study]) -> str:
    """The range of one metaparameter, or its ends if it follows the batch size by a rule."""
    first, last = (_range(study.space[name]) for study in (studies[0], studies[-1]))
    if first == last:
        return first
    sizes = f"{studies[0].batch_size:,}", f"{studies[-1].batch_size:,}"
    return f"{first} at batch size {sizes[0]} to {last} at {sizes[1]}"


def _range(entry: Range | Choice | Value) -> str:
    if isinstance(entry, Range):
        scale = "" if entry.scale == "linear" else f" ({entry.scale.replace('_', ' ')})"
        return f"{entry.low:g} to {entry.high:g}{scale}"
    if isinstance(entry, Choice):
        return f"of {listed([*map(str, entry.options)])}"
    return short(entry)


def _trials(studies: Sequence[Study]) -> list[str]:
    most = ends_of([study.budget_steps for study in studies])
    ends = ["when it had reached every goal"] if studies[0].stop_at_goal else []
    if studies[0].stop_dominated:
        best = "the first" if studies[0].keep == 1 else f"the first {studies[0].keep}"
        ends.append(f"when it could no longer be among {best} to reach one")
    return [f"A trial ended {', '.join([*ends, f'or after {most} steps' if ends else most])}."]


def _repeats(studies: Sequence[Study], rows: Sequence[FrontierRow]) -> str:
    curves = {", ".join(names): curve for names, curve in curves_of(rows).items()}
    if not any(map(has_medians, curves.values())):
        return "Steps are the fewest of any trial, which are too few by luck."
    return _medians(studies) + beside_minima(curves)


def _medians(studies: Sequence[Study]) -> str:
    study = next((s for s in studies if s.repeats and not s.is_one_point), None)
    if study is None:
        return "Steps are medians over trainings that differ in their seeds."
    if study.repeat_best == 1:
        return (
            f"The best point was trained {study.repeats} times again with other seeds. Steps are "
            f"medians of these."
        )
    return (
        f"The best {study.repeat_best} points were each trained {study.repeats} times again with "
        f"other seeds: half of these chose the point, and steps are medians of the other half."
    )


def _amount(run: RunFiles, studies: Sequence[Study]) -> str:
    keys = [study.key for study in studies]
    trials, repeats = (sum(map(len, run.in_parallel(of.trials, keys))) for of in (run, run.repeats))
    facts = run.provenance()
    packages = ", ".join(f"{name} {version}" for name, version in facts.get("packages", {}).items())
    commit = f", commit {facts['commit']}" if facts.get("commit") else ""
    made = f" It was made with orchestrate-batch-size {facts['version']}{commit}" if facts else ""
    made += f", {packages}" if packages and not run.imported else ""
    return f"The run holds {trials:,} trials and {repeats:,} repeats.{made}{'.' if made else ''}"
