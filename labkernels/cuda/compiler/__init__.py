"""NVRTC, Triton, their cache, and reports on compiled kernels; no GPU is needed."""
