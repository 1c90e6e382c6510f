"""What the frontier says: pure functions on numbers."""

from orchestrator.analysis.cost import Advice, Cost, advice, costs
from orchestrator.analysis.metaparameters import Tuned, tuned
from orchestrator.analysis.scaling import Estimate, Scaling, curves_of, scaling_of, scalings
from orchestrator.analysis.words import in_words, sentence, sparkline

__all__ = [
    "Advice",
    "Cost",
    "Estimate",
    "Scaling",
    "Tuned",
    "advice",
    "costs",
    "curves_of",
    "in_words",
    "scaling_of",
    "scalings",
    "sentence",
    "sparkline",
    "tuned",
]
