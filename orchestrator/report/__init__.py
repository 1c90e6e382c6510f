"""The page a person decides from: the only place that imports plotly."""

from orchestrator.report.content import Panel, Settings
from orchestrator.report.gathering import Source, panels_of
from orchestrator.report.page import write_report
from orchestrator.report.trials import Course, course_of

__all__ = [
    "Course",
    "Panel",
    "Settings",
    "Source",
    "course_of",
    "panels_of",
    "write_report",
]
