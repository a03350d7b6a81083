"""`labkernels compare`: train against rollout, for tensors that someone saved."""

import argparse
from pathlib import Path

from labkernels.cli.audit import CODES, add_reading, how_read
from labkernels.cli.options import DONE, USAGE, judging

HELP = "two outputs of the same tokens: equal, rounding, or a bug"
WAITING = "judging {a} and {b} against float64; --quick seeks no names"
DESCRIPTION = """\
Compare two attention outputs for the same tokens, as of training and of rollout: decode against
prefill, another batch, other splits. Each is judged by its own inputs; tokens belong together where
their queries have the same bits. The answer is
  EQUAL BITS   every bit of the tokens that both have
  ROUNDING     equal but for rounding, and where they first part: at which number of keys
  LESS EXACT   one of them rounds more than the format needs
  BUG          one of them is wrong, and which
  OTHER INPUTS the same queries see other keys, another scale or mask, and which

Both files are as for `labkernels audit`; where b has an output alone, the inputs are those of a.

examples:
  labkernels compare prefill.pt decode.pt
  labkernels compare train.safetensors rollout.npz --map out=hidden

exit codes: 0 equal bits or rounding; 1 a bug; 2 inconclusive, other inputs, or a file that cannot
be judged; 3 less exact.
"""


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the two files, and options for what they do not say."""
    sub.add_argument("a", type=Path, help="a file of tensors, or a folder of dumps")
    sub.add_argument("b", type=Path, help="another, for the same tokens")
    add_reading(sub)


def run(options: argparse.Namespace) -> int:
    """Compare the files; the exit code is the answer."""
    from labkernels.audit.comparison import EQUAL, compare_dumps

    with judging(f"{options.a} and {options.b}"):
        found = compare_dumps(options.a, options.b, **how_read(options))
    print(found.summary())
    return DONE if found.answer == EQUAL else CODES.get(found.answer, USAGE)
