"""Figures: data in, figure out."""

from orchestrator.report.figures.branches import (
    BranchCurve,
    Mark,
    Series,
    Stairs,
    batch_sizes_along,
    trunk_and_branches,
)
from orchestrator.report.figures.cost import device_seconds_against_time, examples_against_steps
from orchestrator.report.figures.course import (
    Curve,
    Span,
    distances,
    schedules,
    timeline,
    training_curves,
)
from orchestrator.report.figures.enough import best_of_trials
from orchestrator.report.figures.gaps import (
    accuracy_held,
    best_within,
    generalisation_gap,
    ladder,
    training_longer,
)
from orchestrator.report.figures.metaparameters import best_values, options
from orchestrator.report.figures.noise import NoiseLine, forecast_against_measured, noise_along
from orchestrator.report.figures.parallel import Axis, Lines, parallel_coordinates
from orchestrator.report.figures.steps import (
    goals_compared,
    relative_steps,
    small_steps,
    steps_to_goal,
)
from orchestrator.report.figures.tried import (
    heat_maps,
    tried,
    tried_by_workload,
    tried_within,
)

__all__ = [
    "Axis",
    "BranchCurve",
    "Curve",
    "Lines",
    "Mark",
    "NoiseLine",
    "Series",
    "Span",
    "Stairs",
    "accuracy_held",
    "batch_sizes_along",
    "best_of_trials",
    "best_values",
    "best_within",
    "device_seconds_against_time",
    "distances",
    "examples_against_steps",
    "forecast_against_measured",
    "generalisation_gap",
    "goals_compared",
    "heat_maps",
    "ladder",
    "noise_along",
    "options",
    "parallel_coordinates",
    "relative_steps",
    "schedules",
    "small_steps",
    "steps_to_goal",
    "timeline",
    "training_curves",
    "training_longer",
    "tried",
    "tried_by_workload",
    "tried_within",
    "trunk_and_branches",
]
