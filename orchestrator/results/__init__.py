"""Stores a run on disk and reads the frontier from its files."""

from orchestrator.results.archive import import_archive
from orchestrator.results.archive_export import export_archive
from orchestrator.results.best import BestRow, best_of, best_of_studies
from orchestrator.results.compact_export import export_compact
from orchestrator.results.counting import Within
from orchestrator.results.frontier import FrontierRow, GoalOf, frontier_of, parse_goals
from orchestrator.results.frontier_files import best_to_csv, to_csv, write_frontier
from orchestrator.results.outcomes import column_of, outcomes_of, steps_to_all
from orchestrator.results.provenance import provenance
from orchestrator.results.remarks import unknown_of
from orchestrator.results.repeats import median_interval
from orchestrator.results.spent import Spent, StepTime, spent, step_times
from orchestrator.results.store import Run, confirmation_of, holds_branches
from orchestrator.results.without_pandas import import_no_pandas

import_no_pandas()
