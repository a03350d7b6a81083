"""Graders: each runs and judges the answers of one kind by run, judge and remarks."""
