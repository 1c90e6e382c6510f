"""What the frontier says: pure functions on numbers."""

from orchestrator.analysis.comparisons import Group, groups_of, relative, shared_size
from orchestrator.analysis.cost import Advice, Cost, Device, Priced, advice, costs, devices_of
from orchestrator.analysis.points import (
    Point,
    beside_minima,
    curves_of,
    points_of,
    trained_points,
)
from orchestrator.analysis.quality import Gap, Held, Largeness, gaps, largeness, wander
from orchestrator.analysis.scaling import Estimate, Scaling, scaling_of, scalings
from orchestrator.analysis.tuned import OptionPoint, Tuned, by_option, tuned
from orchestrator.analysis.words import (
    in_count,
    in_time,
    in_words,
    median_of,
    on_medians,
    sentence,
    sparkline,
    steps_of,
)

__all__ = [
    "Advice",
    "Cost",
    "Device",
    "Estimate",
    "Gap",
    "Group",
    "Held",
    "Largeness",
    "OptionPoint",
    "Point",
    "Priced",
    "Scaling",
    "Tuned",
    "advice",
    "beside_minima",
    "by_option",
    "costs",
    "curves_of",
    "devices_of",
    "gaps",
    "groups_of",
    "in_count",
    "in_time",
    "in_words",
    "largeness",
    "median_of",
    "on_medians",
    "points_of",
    "relative",
    "scaling_of",
    "scalings",
    "sentence",
    "shared_size",
    "sparkline",
    "steps_of",
    "trained_points",
    "tuned",
    "wander",
]
