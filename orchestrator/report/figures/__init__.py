"""Figures: data in, figure out."""

from orchestrator.report.figures.cost import examples_against_steps
from orchestrator.report.figures.course import Curve, Span, timeline, training_curves
from orchestrator.report.figures.metaparameters import best_values, tried
from orchestrator.report.figures.quality import best_within
from orchestrator.report.figures.steps import goals_compared, relative_steps, steps_to_goal

__all__ = [
    "Curve",
    "Span",
    "best_values",
    "best_within",
    "examples_against_steps",
    "goals_compared",
    "relative_steps",
    "steps_to_goal",
    "timeline",
    "training_curves",
    "tried",
]
