"""Graders: each runs and judges the answers of one kind by run, judge and remarks.

`judge` gives the lines on what is wrong, none for a right answer; the first line comes at once.
`judge_compiled`, where a grader has one, gives those on what only a GPU's compiler shows.
"""
