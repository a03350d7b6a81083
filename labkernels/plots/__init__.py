"""Figures and tables for the book: functions from a DataFrame to a matplotlib Figure.

They read no files, and the caller shows or saves the figure. A figure of numbers takes `origin`, a
line that says where and when these were measured or computed.
"""

from labkernels.plots.accuracy.detection import detection_matrix, refused_shares
from labkernels.plots.accuracy.error_budget import (
    budget_by_group,
    budget_shares,
    calibration,
    error_waterfall,
)
from labkernels.plots.accuracy.errors import (
    error_maps,
    error_spread,
    errors_by_heads,
    relative_difference,
)
from labkernels.plots.accuracy.policies import in_words, policies, policy_costs
from labkernels.plots.accuracy.roads import batch_map, position_sweep, road_maps
from labkernels.plots.accuracy.verdict import verdict_figure, verdict_page
from labkernels.plots.architecture import rooms_by_layer
from labkernels.plots.arithmetic import alignment, chain_bias, exponential_unit, rejections
from labkernels.plots.performance.counters import (
    busy,
    busy_parts,
    counter_table,
    ladder,
    waiting,
    waiting_warps,
)
from labkernels.plots.performance.mla import read_counts
from labkernels.plots.performance.times import (
    case_times,
    graph_times,
    group_and_page,
    least_times,
    ratios_by_part,
)
from labkernels.plots.performance.tuning import best_by_runs, expected_and_measured
from labkernels.plots.tables import table
