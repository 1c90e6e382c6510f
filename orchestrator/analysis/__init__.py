"""Derives answers from the frontier, by pure functions on numbers."""

from orchestrator.analysis.best_batch import BestBatch, best_batch_sizes, best_in_words
from orchestrator.analysis.branches import Verdict
from orchestrator.analysis.cost import advice, costs, devices_of
from orchestrator.analysis.estimates import Estimate, ratio_of, together
from orchestrator.analysis.forecasts import (
    Comparison,
    Forecast,
    NoiseCourses,
    a_fifth_more,
    compared,
    comparisons_of,
    corrected,
    courses_of,
    forecast_by,
)
from orchestrator.analysis.holding import holding_in_words, holdings
from orchestrator.analysis.methods import methods_of
from orchestrator.analysis.pairs import CurvePair, StudyPair
from orchestrator.analysis.points import curves_of, points_of
from orchestrator.analysis.quality import gaps, largeness
from orchestrator.analysis.scale_laws import Law, ScaleAnswer, law_in_words, scale_answer
from orchestrator.analysis.scaling import Scaling, scaling_of, scalings
from orchestrator.analysis.schedules import (
    BranchJudge,
    Confirmed,
    confirmed,
    megatron,
    schedule_of,
    steps_saved,
)
from orchestrator.analysis.tuned import RuleCost, rule_costs, tables_of_rules, tuned
from orchestrator.analysis.two_runs import (
    Difference,
    TwoRuns,
    agreement_in_words,
    compare_runs,
    remarks_on,
)
from orchestrator.analysis.words import (
    batch_sizes_of,
    bend_cells,
    confirmed_in_words,
    cooled_sentences,
    errors_in_words,
    factor_in_words,
    fifth_in_words,
    frontier_cells,
    growing_sentence,
    in_count,
    in_time,
    in_words,
    listed,
    on_medians,
    schedules_in_words,
    sentence,
    verdict_in_words,
)
