"""The worker of executor.py for our side: executor_block.py FILE.gguf MEMORY_BYTES."""

from __future__ import annotations

import json
import resource
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dflash_gguf.executor.blas_threads import one_blas_thread
from dflash_gguf.executor.draft import DraftModel
from dflash_gguf.executor.features import load_features
from dflash_gguf.executor.loading import open_draft
from dflash_gguf.executor.numpy_target import TargetVocabulary
from dflash_gguf.executor.selector import walk
from dflash_gguf.executor.trace import Probe
from dflash_gguf.executor.weights import Budget, Weights

CONTEXT = 64


class RandomTable:
    """A target's embedding in BF16 values, made when it is read: what counts is that it is dequantized and kept."""

    name = "random"

    def __init__(self, rows: int, width: int) -> None:
        self.shapes = {"token_embd.weight": (rows, width)}
        self._bits = np.random.default_rng(0).integers(0x3C00, 0x3D00, (1 << 20), np.uint16)

    def read_rows(self, tensor: str, first: int, last: int) -> NDArray[np.float32]:
        width = self.shapes[tensor][1]
        bits = np.resize(self._bits, (last - first) * width).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).reshape(last - first, width)


def main() -> None:
    with ExitStack() as files, one_blas_thread():
        budget = Budget(int(sys.argv[2]))
        spec, weights = open_draft(Path(sys.argv[1]), budget, files)
        table = RandomTable(spec.vocab_size, spec.embedding_length)
        target = TargetVocabulary(Weights(table, budget))
        features = load_features(f"random:{CONTEXT}", spec.embedding_length * len(spec.target_layers))
        print("{}", flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            model = DraftModel(spec, weights, target, Probe())
            model.extend(features)
            walk(model.lattice(7), n_max=spec.max_draft)
            seconds = time.perf_counter() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(json.dumps({"seconds": seconds, "peak_mb": peak}), flush=True)


if __name__ == "__main__":
    main()
