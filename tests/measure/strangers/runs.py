"""The verdict on an output of a dense call."""

from labkernels.audit.verdict import verdict
from labkernels.measure.mistakes.attention import Call


def judged(call: Call, out, **how):
    """Return the verdict on an output, from the call's tensors and options alone."""
    asked = {"causal": call.causal, "scale": call.scale, "window_left": call.window_left}
    return verdict(out, call.q, call.k, call.v, layout="bhsd", **asked, **how)
