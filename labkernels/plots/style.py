"""How all figures look: one colour for each kernel, one marker for tensor cores on and off."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart. CUDA cores are warm, tensor
# cores cold; a prefill kernel has the colour of the decode kernel that is made like it.
COLOURS = {
    "decode_fma": "#d55e00",
    "prefill_fma": "#d55e00",
    "decode_mma": "#0072b2",
    "prefill_mma": "#0072b2",
    "prefill_wgmma": "#1b3a6b",
    "backward_mma": "#0072b2",
    "backward_wgmma": "#1b3a6b",
    "mla_fma": "#d55e00",
    "mla_mma": "#0072b2",
    "mla_wgmma": "#1b3a6b",
    "triton_mla": "#cc79a7",
    "decode_mma_n8": "#009e73",
    "triton_decode": "#cc79a7",
    "triton_prefill": "#cc79a7",
    "triton_backward": "#cc79a7",
    "append": "#0072b2",
    "flashinfer_cuda_cores": "#e69f00",
    "flashinfer_fa2": "#56b4e9",
    "flashinfer_fa3": "#7b3294",
    "flashinfer_auto": "#2b2b2b",
    "torch_sdpa": "#b3bcc7",
}
MARKERS = {"on": "s", "off": "o"}
LINES = {"on": "-", "off": (0, (5, 2))}
NAMES = {
    "triton_decode": "Triton",
    "triton_prefill": "Triton",
    "triton_backward": "Triton",
    "triton_mla": "Triton",
    "flashinfer_cuda_cores": "FlashInfer, CUDA cores",
    "flashinfer_fa2": "FlashInfer, fa2",
    "flashinfer_fa3": "FlashInfer, fa3",
    "flashinfer_auto": "FlashInfer, auto",
    "torch_sdpa": "torch SDPA",
    "torch_fa2": "FlashAttention-2 (torch)",
    "torch_cudnn": "cuDNN (torch)",
    "torch_fa2 backward": "FlashAttention-2",
    "torch_cudnn backward": "cuDNN",
    "cublas": "cuBLAS",
}
CEILING = "#56606d"
RULE = "#d5dae1"
ERROR_MAP = "cividis"
WIDTH_INCHES = 5.0  # narrow, so that text stays readable when a phone shrinks it to 360 pixels

# A drawing function runs under it: @plt.rc_context(style.HOUSE).
HOUSE = {
    "figure.dpi": 180,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.edgecolor": "#9aa3af",
    "axes.labelcolor": "#2d343d",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e8ebef",
    "grid.linewidth": 0.8,
    "xtick.color": "#56606d",
    "ytick.color": "#56606d",
    "xtick.labelcolor": "#2d343d",
    "ytick.labelcolor": "#2d343d",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}


def colour(kernel: str) -> str:
    """Return the colour of a kernel or peer.

    Raises: ValueError naming those that have one.
    """
    if kernel not in COLOURS:
        raise ValueError(f"kernel = {kernel!r}, allowed: {', '.join(COLOURS)}")
    return COLOURS[kernel]


def name(kernel: str, tensor_cores: str = "") -> str:
    """Return how a figure calls a kernel; Triton's one source needs on or off beside it."""
    text = NAMES.get(kernel, kernel)
    return f"{text}, {tensor_cores}" if NAMES.get(kernel) == "Triton" and tensor_cores else text


def new_figure(
    rows: int = 1,
    columns: int = 1,
    *,
    height_inches: float,
    width_inches: float = WIDTH_INCHES,
    width_ratios: tuple[float, ...] | None = None,
    sharex: bool = False,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure in the house style and its axes, row by row."""
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(width_inches, height_inches),
        width_ratios=width_ratios,
        sharex=sharex,
        sharey=sharey,
        squeeze=False,
        layout="constrained",
    )
    return figure, list(axes.flat)


def say_origin(figure: Figure, origin: str) -> None:
    """Write below the axes where the numbers come from, so that the picture keeps it."""
    figure.supxlabel(origin, fontsize=7.5, color="#56606d", x=0.99, ha="right")
