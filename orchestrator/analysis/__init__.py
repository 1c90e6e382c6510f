"""Derives answers from the frontier, by pure functions on numbers. Here is what the documentation
names; all else is imported from its file."""

from orchestrator.analysis.cost import advice, costs, devices_of
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.quality import gaps
from orchestrator.analysis.scaling import Scaling, scaling_of, scalings
from orchestrator.analysis.tuned import tuned
from orchestrator.analysis.words import headline, sentence
