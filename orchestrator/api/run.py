"""A run as an object, whose methods read its answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from orchestrator.analysis import Scaling, scalings, sentence
from orchestrator.analysis.best_batch import BestBatch, best_batch_sizes, best_in_words
from orchestrator.analysis.branch_answer import Answer, answer_in
from orchestrator.analysis.branches import Verdict
from orchestrator.analysis.forecasts import Comparison, comparisons_of
from orchestrator.analysis.pairs import CurvePair, StudyPair
from orchestrator.analysis.tuned import RuleCost, rule_costs
from orchestrator.analysis.two_runs import Difference, agreement_in_words, compare_runs
from orchestrator.analysis.words import remarks_on, verdict_in_words
from orchestrator.api.command import run_command, several
from orchestrator.api.tables import ArrowTable, Table
from orchestrator.cli.advising import Suggestion, advised_for
from orchestrator.files.places import Place
from orchestrator.planning.sweep_file import validated
from orchestrator.records import BadInput, Study, refuse_unknown, unknown
from orchestrator.results import (
    BestRow,
    FrontierRow,
    RunFiles,
    Within,
    best_of,
    frontier_of,
    holds_branches,
    parse_goals,
    unknown_of,
)
from orchestrator.results.export import export_compact
from orchestrator.results.frontier import refuse_unmeasured

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from orchestrator.report.style import Drawing

Texts = str | Iterable[str] | None
"""One goal or amount of training, several, or None for those of the run."""

STUDY = ("workload", "recipe", "batch_size")
FRONTIER = (*STUDY, "goal", "steps", "trial", "params", "repeats.median", "repeats.params")
BEST = (*STUDY, "metric", "within", "value", "censored", "step", "trial", "params")
BEST_BATCH = (*STUDY[:2], "metric", "within", "batch_size", "verdict")
SCALING = (
    "workload", "recipe", "goal", "critical_by_examples_is",
    "critical_by_examples", "max_useful_batch_size", "critical_batch_size",
)  # fmt: skip
RULES = ("recipe", "tuned", "batch_size", "ratio", "mean")
FORECASTS = ("workload", "recipe", "goal", "forecast", "measured", "ratio")
PAIRS = ("workload", "recipe", "batch_size", "goal", "a", "b", "ratio", "verdict", "beyond_chance")
STEPS = ("what", "trainings", "examples", "narrowing", "command")
VERDICTS = ("at_examples", "fifth_more_batch_size", "critical", "is_known")
"""Columns that the table of each answer shows."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How far two runs A and B of one sweep agree."""

    verdict: str
    """`same` if their frontiers are the same byte for byte, `differ` if any study or curve differs
    beyond chance, else `agree`."""
    studies: Table[StudyPair]
    """The steps to goal of each study in both runs."""
    curves: Table[CurvePair]
    """The batch size of each curve that takes a fifth more examples, in both runs."""
    differences: Table[Difference]
    """What differs in their sweeps, studies, versions and machines."""

    def __repr__(self) -> str:
        return repr(self.studies)

    def _repr_html_(self) -> str:
        return self.studies._repr_html_()


class Run:
    """A run that a sweep has written, finished or not. Every method reads the run's files when it
    is called, so its answer covers what is trained by then."""

    def __init__(self, path: str | Path) -> None:
        self._files = RunFiles.open(path)

    @property
    def path(self) -> str:
        return str(self._files.place)

    @property
    def name(self) -> str:
        return str(self._files.sweep()["name"])

    def __repr__(self) -> str:
        return f"Run({self.path!r})"

    def _repr_html_(self) -> str:
        said = self.branches() if holds_branches(self._files) else self.frontier()
        return said._repr_html_()

    def studies(self) -> Table[Study]:
        return Table(self._files.studies(), asdict)

    def frontier(self, goal: Texts = None) -> Table[FrontierRow]:
        """The fewest steps to `goal` in each study, as `orchestrate frontier` shows them."""
        rows = frontier_of(self._files, parse_goals(several(goal)))
        said = "\n".join(filter(None, [unknown_of(self._files), *remarks_on(rows)]))
        return Table(rows, asdict, said, shown=FRONTIER)

    def best(
        self, metric: str, *, within: Texts = None, maximise: bool | None = None
    ) -> Table[BestRow]:
        """The best value of `metric` in each study, as `orchestrate best` shows it."""
        budgets = [Within.parse(text) for text in several(within)]
        rows = best_of(self._files, metric, maximise=maximise, within=budgets or [None])
        return Table(rows, asdict, shown=BEST)

    def best_batch_size(
        self, metric: str, *, within: Texts = None, maximise: bool | None = None
    ) -> Table[BestBatch]:
        """The batch size with the best value of `metric` for each amount of training, such as
        "examples=1e6", as `orchestrate scale` shows it; without amounts, for the whole budget."""
        amounts = [Within.parse(text) for text in several(within)]
        found = best_batch_sizes(self._files, metric, within=amounts, maximise=maximise)
        said = "\n".join(f"{one.workload}, {one.recipe}: {best_in_words(one)}" for one in found)
        return Table(found, asdict, said, shown=BEST_BATCH)

    def scaling(self, goal: Texts = None) -> Table[Scaling]:
        """The answer of each curve of steps against batch size: where it bends."""
        found = scalings(self.frontier(goal))
        return Table(found, Scaling.to_json, "\n".join(map(sentence, found)), shown=SCALING)

    def rules(self, goal: Texts = None) -> Table[RuleCost]:
        """What rules cost, as `orchestrate frontier --rules` shows it: the steps of each recipe
        whose metaparameters follow a rule over those of a tuned recipe, the cheapest rule first."""
        return Table(rule_costs(self._files, self.frontier(goal)), RuleCost.to_json, shown=RULES)

    def forecasts(self, goal: Texts = None) -> Table[Comparison]:
        """Forecasts from the noise scale beside the measured critical batch sizes, for recipes
        whose repeats or trials measured the noise scale."""
        rows = self.frontier(goal)
        found = comparisons_of(self._files, rows, scalings(rows))
        return Table(found, Comparison.to_json, shown=FORECASTS)

    def advise(self, goal: Texts = None) -> Table[Suggestion]:
        """Steps to train next, as `orchestrate advise` recommends them: at most three, those that
        narrow the answers most for their price."""
        found, remarks = advised_for(self._files, parse_goals(several(goal)))
        return Table(found, Suggestion.to_json, "\n".join(remarks), shown=STEPS)

    def compare(self, other: Run | str | Path, goal: Texts = None) -> Compared:
        """How far this run (A) and another one of the same sweep (B) agree, as `orchestrate
        compare` shows it."""
        files = other._files if isinstance(other, Run) else RunFiles.open(other)
        found = compare_runs(self._files, files, parse_goals(several(goal)))
        agreement = found.agreement
        said = agreement_in_words(agreement)
        return Compared(
            verdict=agreement.verdict,
            studies=Table(agreement.studies, StudyPair.to_json, said, shown=PAIRS),
            curves=Table(agreement.curves, CurvePair.to_json, shown=PAIRS),
            differences=Table(found.differences, asdict),
        )

    def branches(self) -> Table[Verdict]:
        """The verdicts of a run of branches: how large batches may be at points of the trunk."""
        verdicts = self._branches().verdicts
        said = "\n".join(map(verdict_in_words, verdicts))
        return Table(verdicts, asdict, said, shown=VERDICTS)

    def schedules(self) -> dict[str, dict[str, Any]]:
        """The schedules of batch sizes that follow from the verdicts, `conservative` and `central`,
        each as stages, as samples and as a recipe."""
        return self._branches().schedules

    def _branches(self) -> Answer:
        if not holds_branches(self._files):
            raise BadInput(
                f"{self.path} is the run of a sweep and has no branches. `orchestrator.branch` "
                f"makes a run of branches."
            )
        return answer_in(self._files)

    def trials(self) -> ArrowTable:
        """All finished trials of the searches, each with its study."""
        return self._of_all_studies(lambda study: self._files.trials(study.key))

    def repeats(self) -> ArrowTable:
        """All repeats of winners, each with its study."""
        return self._of_all_studies(lambda study: self._files.repeats.trials(study.key))

    def measurements(self, *metrics: str) -> ArrowTable:
        """All measurements of the searches' trials, or only those of the named `metrics`. A compact
        run holds all measurements of its best trials only, as the caption then says."""
        for metric in {*metrics} - {"examples", "seconds"}:
            refuse_unmeasured(self._files, self._files.studies(), metric)
        return self._of_all_studies(
            lambda study: self._files.measurements(study.key, metrics or None),
            "A compact run: whole curves of the best trials only." * self._files.is_compact,
        )

    def figure(self, name: str, goal: Texts = None, *, workload: str | None = None) -> go.Figure:
        """The figure of the report whose title begins with `name` or else contains it, such as
        "steps". Of several goals, and of several workloads if none is named, the first counts."""
        if workload is not None:
            refuse_unknown("workload", [workload], {study.workload for study in self.studies()})
        figures: dict[str, Drawing] = {}
        for (of, title), one in self._figures(goal).items():
            if workload in (None, of):
                figures.setdefault(title, one)
        wanted = name.lower().replace("_", " ")
        found = [title for title in figures if wanted in title.lower()]
        if not found:
            raise unknown("figure", name, figures)
        nearest = min(found, key=lambda title: not title.lower().startswith(wanted))
        return figures[nearest].as_plotly()

    def figures(self, goal: Texts = None) -> list[str]:
        """The titles of all figures of this run."""
        return [title for _, title in self._figures(goal)]

    def report(self, path: str | Path | None = None, goal: Texts = None) -> str:
        """Writes the report to `path`, by default RUN/report.html, and returns that path."""
        from orchestrator.report import frontier_for_page, write_page_of

        page = self._files.page if path is None else Place.at(path)
        goals, of_branches = parse_goals(several(goal)), holds_branches(self._files)
        alone = of_branches and goal is None
        found = self._branches() if alone else frontier_for_page(self._files, goals)
        write_page_of(self._files, found, page)
        return str(page)

    def compact(self, folder: str | Path) -> Run:
        """Writes this run in compact form to `folder`, which must not exist yet, as `orchestrate
        export` does. Returns the compact run."""
        export_compact(self._files, Path(folder).expanduser())
        return Run(folder)

    def resume(
        self,
        *,
        address: str | None = None,
        cluster: str | Path | None = None,
        data_dir: str | Path | None = None,
        track: str | Sequence[str] | None = None,
        ray: bool | None = None,
        quiet: bool = False,
    ) -> Run:
        """Trains what the run is missing. The arguments are the options of `orchestrate resume`."""
        from orchestrator.sweeping import session

        described = validated(self._files.sweep(), f"{self.path} (studies.json)")
        run_command(
            "resume", self.path, partial(session.resume, self._files), own=described.code_names,
            address=address, cluster=cluster, data_dir=data_dir, track=track, ray=ray, quiet=quiet,
        )  # fmt: skip
        return Run(self.path)

    def _of_all_studies(self, table_of: Any, caption: str = "") -> ArrowTable:
        studies = self._files.studies()
        tables = self._files.in_parallel(partial(_with_study, table_of), studies)
        return ArrowTable(pa.concat_tables(tables, promote_options="default"), caption)

    def _figures(self, goal: Texts) -> dict[tuple[str, str], Drawing]:
        from orchestrator.report import Source, figures_of

        return figures_of(Source(run=self._files, rows=self.frontier(goal)))


def _with_study(table_of: Any, study: Study) -> pa.Table:
    table = table_of(study)
    for position, name in enumerate(STUDY):
        table = table.add_column(position, name, pa.array([getattr(study, name)] * len(table)))
    return table


def open_run(path: str | Path) -> Run:
    """Opens a run that exists already."""
    return Run(path)
