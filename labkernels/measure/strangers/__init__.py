"""Outputs as other people's kernels might give, right and wrong, by code independent of ours.

`inputs` has families of inputs, `right` has right implementations, `wrong` has bugs, `runs` judges
them and counts. Every kind belongs to the development set or to a held-out set. Nobody looked at
the held-out kinds while the verdict was written, so their figures are the ones to quote.
"""
