"""What a chapter has to run, draw and derive, checked by the log in its outputs."""

from itertools import product

from labkernels.bench.log import FIGURES, MIME, Log

FORMULAS = ("shared memory", "registers", "blocks per SM")


def missing(log):
    """Name the missing runs (operation, language, tensor cores), figures and formulas."""
    names = ("operation", "language", "tensor_cores")
    ran = {tuple(run[name] for name in names) for run in log.runs}
    lacks = [
        f"{operation}, {language}, tensor cores {way}"
        for operation in ("decode", "prefill")
        for language, way in product(("cuda", "triton"), ("on", "off"))
        if (operation, language, way) not in ran
    ]
    drawn, derived = ({kind for _, kind in told} for told in (log.figures, log.formulas))
    lacks += [f"the figure of {kind}" for kind in FIGURES if kind not in drawn]
    return lacks + [f"the formula of {kind}" for kind in FORMULAS if kind not in derived]


def log_of(notebook):
    """Return the sum of the logs in the outputs of an executed notebook (nbformat 4)."""
    found = Log()
    for cell in notebook.get("cells", ()):
        for output in cell.get("outputs", ()):
            told = output.get("data", {}).get(MIME)
            if told is not None:
                pairs = ([tuple(pair) for pair in told[kind]] for kind in ("figures", "formulas"))
                found += Log(told["runs"], *pairs)
    return found
