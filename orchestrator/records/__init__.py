"""The nouns of the project: frozen values that describe a sweep and are validated when made."""

from orchestrator.records.errors import (
    CONTROLS,
    BadInput,
    MissingData,
    RankFailed,
    SweepFailed,
    corrupt,
    counted,
    cut,
    escaped,
    frames_of_user,
    mistake,
    mistakes_in,
    refuse_unknown,
    shown,
    unknown,
    unreadable,
    wrong_value,
)
from orchestrator.records.goals import HELD_FOR, STAYS, Goal, Watch
from orchestrator.records.grouping import grouped
from orchestrator.records.ranges import (
    LARGEST,
    SMALLEST,
    Choice,
    Range,
    Scale,
    Space,
    Value,
    check_kind,
    near_bounds,
    point_text,
    searched,
    short,
)
from orchestrator.records.roles import Role, differences, settings_of, shown_pair
from orchestrator.records.scaling_rules import RULES, ScalingRule
from orchestrator.records.stages import BatchSchedule, Stage
from orchestrator.records.studies import (
    DESIGN_NAMES,
    ENOUGH_SIZES,
    MANY,
    WIDEST_SPACING,
    EvaluationGrid,
    Extras,
    Heard,
    Program,
    SearchPlan,
    Source,
    Study,
    StudyKey,
    plain,
)
from orchestrator.records.trials import (
    STATUSES,
    FinishedTrial,
    Measurement,
    Outcome,
    Status,
    Trial,
    TrialKey,
    best_by_median,
    derive_seed,
    the_only,
)
