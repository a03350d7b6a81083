"""The CUDA floor: the kernels' vocabulary, their compilers, and how they are launched."""
