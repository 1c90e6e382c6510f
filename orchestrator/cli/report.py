"""The page of runs, and its answers as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.cli.options import DONE, GoalOption, JsonOption, print_json
from orchestrator.records import BadInput, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.files.places import Place
    from orchestrator.report import Course, Settings
    from orchestrator.results import FrontierRow, GoalOf, Run


def report(
    paths: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Runs; several are compared on one page.")
    ],
    goal: GoalOption = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="The page [RUN/report.html].")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE@BATCH_SIZE", help="On the page: what is large and huge beside it."
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="Of a device-hour: tell costs in money, too.")
    ] = None,
    compare_at: Annotated[
        int | None,
        typer.Option(min=1, help="Batch size that comparisons are relative to [the smallest]."),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each figure there as well.")
    ] = None,
    image_format: Annotated[
        Literal["svg", "png", "pdf"], typer.Option("--format", help="Of these images.")
    ] = "svg",
    as_json: JsonOption = False,
) -> int:
    """Write the report of runs as one HTML page, or print its answers as JSON."""
    from orchestrator.cli.terminal import answer
    from orchestrator.files.places import Place
    from orchestrator.results import Run, parse_goals

    names = _names(paths)
    goals = parse_goals(goal or [])
    opened = {name: Run.open(path) for name, path in zip(names, paths, strict=True)}
    rows = _frontiers([*opened.values()], goals)
    runs = {name: (run, some) for (name, run), some in zip(opened.items(), rows, strict=True)}
    asked = {"baseline": baseline, "price_per_device_hour": price, "compare_at": compare_at}
    if as_json:
        print_json(_answers(runs, asked))
        return DONE
    if output is None and len(runs) > 1:
        raise BadInput("Name the page of several runs with -o, such as -o compared.html.")
    page = Place.at(output) if output else opened[names[0]].place / "report.html"
    try:
        write_report_of(
            runs, page, asked=asked, images=None if images is None else (images, image_format)
        )
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"The report can't be written to {page}: {reason}.") from None
    answer(page)
    return DONE


def _frontiers(runs: Sequence[Run], goals: Sequence[GoalOf]) -> list[list[FrontierRow]]:
    """Of each; of several, a goal is asked of those that have its workloads."""
    from orchestrator.results import frontier_of

    asked = [[one for one in goals if any(map(one.asked_of, run.studies()))] for run in runs]
    nowhere = [one for one in goals if not any(one in some for some in asked)]
    return [
        frontier_of(run, [*some, *nowhere]) if some or nowhere or not goals else []
        for run, some in zip(runs, asked, strict=True)
    ]


def _answers(
    runs: Mapping[str, tuple[Run, Sequence[FrontierRow]]], asked: Mapping[str, object]
) -> list[dict[str, object]]:
    """Per run, workload, goal and recipe: where its curve bends, and what to take of it."""
    from orchestrator.report import Source

    found = []
    settings = _settings([run for run, _ in runs.values()], asked)
    for name, (run, rows) in runs.items():
        for panel in Source(run=run, rows=rows).answers(settings):
            advice = panel.advice_by_recipe
            for scaling in panel.scalings:
                recommended = advice.get(scaling.recipe)
                answer = {
                    **scaling.to_json(),
                    "recommended": None if recommended is None else recommended.to_json(),
                }
                found.append({"run": name, **answer} if len(runs) > 1 else answer)
    return found


def _settings(runs: Sequence[Run], asked: Mapping[str, object]) -> Settings:
    """What was asked for, and else what the first run's sweep file asks for."""
    from orchestrator.report import Settings

    own = runs[0].sweep().get("report") or {}
    given = {key: value for key, value in asked.items() if value is not None}
    settings = Settings.of({**own, **given})
    if "baseline" in given:
        known = {f"{s.recipe}@{s.batch_size}" for run in runs for s in run.studies()}
        if str(settings.baseline) not in known:
            raise unknown("baseline", str(settings.baseline), known)
    return settings


def _names(paths: Sequence[str]) -> list[str]:
    """The last parts of the paths, or all of them where that would not tell them apart."""
    last = [path.rstrip("/").rpartition("/")[2] for path in paths]
    names = last if len(set(last)) == len(last) else [*paths]
    if len(set(names)) < len(names):
        raise BadInput("The same run is given twice.")
    return names


def write_report_of(
    runs: Mapping[str, tuple[Run, Sequence[FrontierRow]]],
    place: Place,
    *,
    reload_seconds: int | None = None,
    asked: Mapping[str, object] | None = None,
    images: tuple[Path, str] | None = None,
) -> None:
    """The page of a run; of several by their names, on one page."""
    from orchestrator.files.yaml_files import write_yaml
    from orchestrator.report import Source, course_of, panels_of, write_report

    many = len(runs) > 1
    provenance: dict[str, object] = {}
    courses = {name: course_of(run) for name, (run, _) in runs.items()}
    for name, (run, _) in runs.items():
        told = {**_versions(run.provenance()), **_how_it_ran(run, courses[name])}
        provenance |= {f"{name}: {key}" if many else key: value for key, value in told.items()}
    write_report(
        place,
        reload_seconds=reload_seconds,
        images=images,
        title=", ".join(str(run.sweep()["name"]) for run, _ in runs.values()),
        panels=panels_of(
            [
                Source(run=run, rows=rows, label=name if many else "")
                for name, (run, rows) in runs.items()
            ],
            _settings([run for run, _ in runs.values()], asked or {}),
        ),
        spans=[] if many else [span for course in courses.values() for span in course.spans],
        provenance=provenance,
        sweep_file="\n".join(write_yaml(run.sweep()) for run, _ in runs.values()),
    )


def _versions(provenance: Mapping[str, object]) -> dict[str, object]:
    packages = provenance.get("packages")
    if not isinstance(packages, dict):
        return {**provenance}
    return {
        **provenance,
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
    }


def _how_it_ran(run: Run, course: Course) -> dict[str, str]:
    from orchestrator.analysis import in_time

    ended = ", ".join(f"{count:,} {status}" for status, count in course.statuses.items())
    told = {"trials": ended}
    if course.seconds is not None:
        told["from the first trial to the last"] = in_time(course.seconds)
    if run.imported:
        return told
    stop = run.sweep()["stop"]
    on = stop["at_goal"] if stop["dominated"] is None else stop["dominated"]
    shares = [s["busy_share"] for s in run.sessions() if s["busy_share"] is not None]
    return {
        "seed": str(run.sweep()["seed"]),
        **told,
        "exact stopping": "on: trials that could no longer change the frontier were ended"
        if on
        else "off: every trial went on to its goals or its budget",
        "time training or evaluating": ", ".join(f"{share:.0%}" for share in shares) or "unknown",
    }
