"""Steps on a real GPU as CUDA graphs."""

import torch


def captured(step):
    """Return the step as a CUDA graph."""
    step.run()  # Triton compiles at the first run
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    return graph
