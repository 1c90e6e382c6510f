"""A paragraph for papers: what was done, from what a run's files say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.analysis.estimates import CONFIDENCE
from orchestrator.analysis.points import beside_minima, curves_of, has_medians
from orchestrator.analysis.scaling import USEFUL_TOLERANCE
from orchestrator.analysis.words import batch_sizes_of, ends_of, listed
from orchestrator.files.yaml_files import write_yaml
from orchestrator.records import Choice, Range, Study, Value, counted, short
from orchestrator.results import FrontierRow, RunFiles, unknown_of


def methods_of(run: RunFiles, rows: Sequence[FrontierRow]) -> str:
    """Sentences on what was done, from what the run's files say. What a run of others did not write
    down is left out."""
    studies = run.studies()
    goals = dict.fromkeys(row.goal for row in rows)
    ordered = sorted(studies, key=lambda study: study.batch_size)
    sizes = [*dict.fromkeys(batch_sizes_of(study) for study in ordered)]
    measured = f"measured the number of steps until {listed([*goals])} for" if goals else "ran"
    workloads = listed([*dict.fromkeys(study.workload for study in studies)])
    of_several = "s" * (len(sizes) > 1)
    said = [f"We {measured} {workloads} at batch size{of_several} {listed(sizes)}."]
    if run.imported:
        said.append("The trainings were made elsewhere, and their files were imported.")
    elif "recipes" in (sweep := run.sweep()):
        said += [*_search(sweep, studies), *_trials(studies)]
    if reached := any(row.steps_answered is not None for row in rows):
        said.append(_repeats([] if run.imported else studies, rows))
    if not all(row.finished for row in rows):
        said.append("The run has not finished.")
    if reached and curves_of(rows):
        others = "what other trials would have found, "
        said.append(_INTERVALS.replace(others, "") if unknown_of(run) else _INTERVALS)
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
    searched = [study for study in studies if not study.is_one_point]
    said = []
    asked = {r["name"]: (r["search"] or sweep["search"])["algorithm"] for r in sweep["recipes"]}
    for algorithm in dict.fromkeys(asked[study.recipe] for study in searched):
        mine = [study for study in searched if asked[study.recipe] == algorithm]
        recipes = dict.fromkeys(study.recipe for study in mine)
        of = listed([*recipes]) if len(mine) < len(studies) else "each recipe"
        same = ", the same at all batch sizes" * (not mine[0].search.is_adaptive)
        trials = [study.trials for study in mine]
        said.append(
            f"At each batch size of {of}, a {algorithm} search with seed {sweep['seed']} tried "
            f"{ends_of(trials)} point{'s' * (max(trials) > 1)}{same}."
        )
    spaces: dict[str, dict[str, list[str]]] = {}  # recipe -> space -> workloads
    for name, workload in dict.fromkeys((study.recipe, study.workload) for study in studies):
        mine = [study for study in studies if (study.recipe, study.workload) == (name, workload)]
        mine.sort(key=lambda study: study.batch_size)
        optimizer = "" if mine[0].optimizer in (name, "") else f" ({mine[0].optimizer})"
        entries = ", ".join(f"{entry} {_ranges(entry, mine)}" for entry in mine[0].space)
        spaces.setdefault(f"{name}{optimizer}", {}).setdefault(entries, []).append(workload)
    ranges = [
        f"{name}{f' on {listed(workloads)}' * (len(found) > 1)}: {entries}"
        for name, found in spaces.items()
        for entries, workloads in found.items()
    ]
    said.append(f"The ranges were, for {'; '.join(ranges)}.")
    for recipe in sweep["recipes"]:
        schedule = dict(recipe["schedule"])
        if stages := recipe.get("batch_schedule"):
            schedule["batch_schedule"] = [
                {key: value for key, value in stage.items() if value is not None}
                for stage in stages
            ]
        if schedule:
            text = " ".join(write_yaml(schedule, flow=True).split())
            said.append(f"Schedule of {recipe['name']}: {text}.")
    return said


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
    return [f"A trial ended {', '.join([*ends, 'or ' * bool(ends) + f'after {most} steps'])}."]


def _repeats(studies: Sequence[Study], rows: Sequence[FrontierRow]) -> str:
    curves = {", ".join(names): curve for names, curve in curves_of(rows).items()}
    curves |= {f"{row.key}, {row.goal}": [row] for row in rows if row.batch_schedule}
    if not any(map(has_medians, curves.values())):
        return "Steps are the fewest of any trial, which are too few by luck."
    return _medians(studies, rows) + beside_minima(curves)


def _medians(studies: Sequence[Study], rows: Sequence[FrontierRow]) -> str:
    mine = [study for study in studies if study.repeats and not study.is_one_point]
    if not mine:
        counts = [row.repeats.count for row in rows if row.repeats]
        of = f"{ends_of(counts)} training{'s' * (max(counts) > 1)}"
        return f"Steps are medians of {of} of a point, with seeds that did not choose it."
    times, best = ends_of([study.repeats for study in mine]), mine[0].repeat_best
    chose = ends_of([study.choosing for study in mine])
    said = (
        f"The best point was trained {times} time{'s' * (times != '1')} again with other seeds. "
        f"Steps are medians of these."
        if best == 1
        else f"The best {best} points were each trained {chose} times again with other seeds, and "
        f"these chose the point with the lowest median. It was trained {times} times again in all, "
        f"and steps are medians of the trainings that had no part in the choice."
    )
    if fixed := dict.fromkeys(study.recipe for study in studies if study.is_one_point):
        said += f" Of {listed([*fixed])}, with nothing to search, all trainings count."
    return said


def _amount(run: RunFiles, studies: Sequence[Study]) -> str:
    keys = [study.key for study in studies]
    trials, repeats = (sum(map(len, run.in_parallel(of.trials, keys))) for of in (run, run.repeats))
    facts = run.provenance()
    packages = ", ".join(f"{name} {version}" for name, version in facts.get("packages", {}).items())
    commit = f", commit {facts['commit']}" if facts.get("commit") else ""
    made = f" It was made with orchestrate-batch-size {facts['version']}{commit}" if facts else ""
    made += f", {packages}" if packages and not run.imported else ""
    holds = f"{counted(trials, 'trial')} and {counted(repeats, 'repeat')}"
    return f"The run holds {holds}.{made}{'.' if made else ''}"
