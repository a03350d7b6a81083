"""reference: what torch computes, float64 as the truth and 16 bits as the everyday baseline."""

from pathlib import Path

from labkernels.kernels.spec import DecodeTile, KernelSpec, NumericPolicy

FLOAT64 = NumericPolicy(p="fp64", exp2="library", accumulate="fp64", out="fp64")
EAGER = NumericPolicy(exp2="library")  # each operation rounds its result to 16 bits
WHOLE = DecodeTile(1, 1, 1, 1)  # torch chooses its own tiles

SPEC = KernelSpec(
    name="reference",
    family="decode",
    language="torch",
    idea="torch.matmul and softmax: float64 as the truth, 16-bit eager as the everyday baseline.",
    parent=None,
    folder=Path(__file__).parent,
    min_arch=0,
    policies=(FLOAT64, EAGER),
    rows=lambda group: group,
    tiles=lambda head_dim, rows, policy: (WHOLE,),
    runner="labkernels.kernels.reference.run",
)
