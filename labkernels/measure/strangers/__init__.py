"""Outputs like those of other people's kernels, by code independent of ours.

`inputs` has calls, `right` their exact outputs, `wrong` computes wrong ones, `drawn` draws mistakes
from seeds, and `runs` judges a set of right implementations and bugs. Sets are test data.
"""
