"""The page and the figures of whole runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from orchestrator.analysis.words import in_time
from orchestrator.files.places import Place
from orchestrator.files.yaml_files import write_yaml
from orchestrator.records import unknown
from orchestrator.report.content import Settings
from orchestrator.report.drawing import Drawing
from orchestrator.report.gathering import Source, panels_of
from orchestrator.report.page import Images, all_figures, write_report
from orchestrator.report.scales import scale_answers
from orchestrator.results import Run, holds_branches, unknown_of


def write_report_of(
    sources: Sequence[Source],
    place: Place,
    *,
    reload_seconds: int | None = None,
    asked: Mapping[str, object] | None = None,
    images: Images = None,
) -> None:
    """Writes the page of one run, or of several runs by their labels on one page."""
    runs = [source.run for source in sources]
    provenance: dict[str, object] = {}
    for source in sources:
        told = provenance_of(source.run)
        provenance |= {source.name(key): value for key, value in told.items()}
    write_report(
        place,
        reload_seconds=reload_seconds,
        images=images,
        title=", ".join(str(run.sweep()["name"]) for run in runs),
        panels=panels_of(sources, settings_of(runs, asked or {})),
        notes=[*dict.fromkeys(filter(None, map(unknown_of, runs)))],
        scales=scale_answers({source.label: source.run for source in sources}),
        provenance=provenance,
        sweep_file="\n".join(write_yaml(run.sweep()) for run in runs),
    )


def provenance_of(run: Run) -> dict[str, object]:
    """The versions, the machine, the commit, and how the run went."""
    provenance: dict[str, object] = {**run.provenance()}
    if isinstance(packages := provenance.get("packages"), dict):
        listed = ", ".join(f"{name} {version}" for name, version in packages.items())
        provenance["packages"] = listed
    return {**provenance, **_how_it_ran(run)}


def _how_it_ran(run: Run) -> dict[str, str]:
    branches = holds_branches(run)
    names = {"paused": "trained as far as was needed"} if branches else {}
    tables = run.in_parallel(run.trials, [study.key for study in run.studies()])
    statuses = Counter(status for table in tables for status in table["status"].to_pylist())
    ended = (f"{n:,} {names.get(status, status)}" for status, n in statuses.most_common())
    told = {"trials": ", ".join(ended)}
    if run.is_compact:
        told["measurements"] = (
            "a compact run: all of the best trials and of repeats; of the others only those that "
            "the answers need"
        )
    if run.imported:
        return told
    stop = run.sweep()["stop"]
    on = stop["at_goal"] if stop["dominated"] is None else stop["dominated"]
    shares = [s["busy_share"] for s in run.sessions() if s["busy_share"] is not None]
    if not branches:
        told["exact stopping"] = (
            "on: trials that could no longer change the frontier were ended"
            if on
            else "off: every trial went on to its goals or its budget"
        )
    if times := sum(session.get("interruptions", 0) for session in run.sessions()):
        lost = sum(session.get("lost_seconds", 0) for session in run.sessions())
        told["lost processes and machines"] = (
            f"{times:,} trials were interrupted; their slots lost {in_time(lost)} of work"
        )
    busy = ", ".join(f"{share:.0%}" for share in shares) or "unknown"
    return {"seed": str(run.sweep()["seed"]), **told, "time training or evaluating": busy}


def figures_of(source: Source) -> dict[tuple[str, str], Drawing]:
    """All figures of the page of a run, by workload and title."""
    panels = panels_of([source], settings_of([source.run], {}))
    return all_figures(panels, scale_answers({"": source.run}))


def settings_of(runs: Sequence[Run], asked: Mapping[str, object]) -> Settings:
    """The settings that were asked for, or else those in the first run's sweep file."""
    own = runs[0].sweep().get("report") or {}
    given = {key: value for key, value in asked.items() if value is not None}
    settings = Settings.of({**own, **given})
    if "baseline" in given:
        known = {f"{s.recipe}@{s.batch_size}" for run in runs for s in run.studies()}
        if str(settings.baseline) not in known:
            raise unknown("baseline", str(settings.baseline), known)
    return settings
