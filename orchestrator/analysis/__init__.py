"""What the frontier says: pure functions on numbers."""

from orchestrator.analysis.comparisons import Group, groups_of, relative, shared_size
from orchestrator.analysis.cost import Advice, Cost, Device, advice, costs, devices_of
from orchestrator.analysis.metaparameters import OptionPoint, Tuned, by_option, tuned
from orchestrator.analysis.quality import Gap, Held, Largeness, gaps, largeness, wander
from orchestrator.analysis.scaling import Estimate, Scaling, curves_of, scaling_of, scalings
from orchestrator.analysis.words import in_time, in_words, sentence, sparkline

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
    "Scaling",
    "Tuned",
    "advice",
    "by_option",
    "costs",
    "curves_of",
    "devices_of",
    "gaps",
    "groups_of",
    "in_time",
    "in_words",
    "largeness",
    "relative",
    "scaling_of",
    "scalings",
    "sentence",
    "shared_size",
    "sparkline",
    "tuned",
    "wander",
]
