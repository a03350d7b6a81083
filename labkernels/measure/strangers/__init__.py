"""Outputs like those of other people's kernels, right and wrong, by code independent of ours.

`inputs` has families of inputs, `right` has right implementations, `wrong` computes wrong outputs,
`bugs` lists the bugs, and `runs` judges the outputs. Every family, implementation and bug belongs
to the development set or to the held-out set. Nobody looked at the held-out ones while the verdict
was written, so the figures to quote are those of the held-out set.
"""
