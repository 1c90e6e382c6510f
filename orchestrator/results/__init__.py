"""Stores a run on disk and reads the frontier from its files. No answer has to load what is not
listed here, such as archives."""

from orchestrator.results.best import BestRow, best_of, best_of_studies
from orchestrator.results.counting import Within
from orchestrator.results.frontier import FrontierRow, GoalOf, frontier_of, parse_goals
from orchestrator.results.frontier_files import to_csv, write_frontier
from orchestrator.results.outcomes import (
    MeanCost,
    StepTime,
    column_of,
    mean_costs,
    outcomes_of,
    step_times,
    steps_to_all,
)
from orchestrator.results.remarks import NEAR_END, unknown_of
from orchestrator.results.store import RunFiles, confirmation_of, holds_branches
