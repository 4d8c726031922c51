"""CUDA graphs: a forward pass as one launch."""

import torch

from verify_server.engine.fixed_steps import Compute


class GraphCapture:
    """A `Capture` of one GPU. All graphs share their memory: only one runs at a time, and its logits are used first."""

    def __init__(self, budget: int) -> None:
        """`budget`: bytes that the graphs may take."""
        self._pool = torch.cuda.graph_pool_handle()
        self._budget, self.used = budget, 0

    def __call__(self, compute: Compute) -> Compute | None:
        """See `Capture`."""
        if self.used >= self._budget:
            return None
        before = torch.cuda.memory_reserved()
        here, beside = torch.cuda.current_stream(), torch.cuda.Stream()
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            compute()  # compiles kernels and lets libraries allocate, which a capture forbids
        here.wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                logits = compute()
        except torch.OutOfMemoryError:
            self._budget = self.used  # no other one is tried
            return None
        self.used += max(0, torch.cuda.memory_reserved() - before)

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay
