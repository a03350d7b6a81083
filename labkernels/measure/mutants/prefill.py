"""Prefill kernels with one changed line: bugs that a test of attention should find."""

from labkernels.measure.mutants.mutant import read

MUTANTS = read("prefill")
