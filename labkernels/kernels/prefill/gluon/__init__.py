"""A prefill in Gluon, which measure/peers/gluon.py runs beside the lab's kernels."""
