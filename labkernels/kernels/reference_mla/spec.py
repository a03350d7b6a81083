"""reference_mla: what torch computes, float64 as the truth and 16 bits as the baseline."""

from pathlib import Path

from labkernels.kernels.spec import KernelSpec, NumericPolicy, PrefillTile

FLOAT64 = NumericPolicy(p="fp64", exp2="library", accumulate="fp64", out="fp64")
EAGER = NumericPolicy(exp2="library")  # each operation rounds its result to 16 bits
WHOLE = PrefillTile(1, 1, 1, 1, 1)  # torch chooses its own tiles

SPEC = KernelSpec(
    name="reference_mla",
    family="mla",
    language="torch",
    idea="torch.matmul and softmax over latent rows, a request at a time: float64 or 16 bits.",
    parent=None,
    folder=Path(__file__).parent,
    min_arch=0,
    policies=(FLOAT64, EAGER),
    rows=None,
    tiles=lambda head_dim, rows, policy: (WHOLE,),
    runner="labkernels.kernels.reference_mla.run",
    head_dims=(576,),
)
