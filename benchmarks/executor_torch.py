"""The worker of executor.py for z-lab's side: executor_torch.py CHECKPOINT, in float32 on the CPU."""

from __future__ import annotations

import json
import resource
import sys
import time

import torch
from dflash import DFlash2DraftModel

CONTEXT = 64


@torch.inference_mode()
def main() -> None:
    model = DFlash2DraftModel.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    hidden, vocab = model.config.hidden_size, model.config.vocab_size
    table = torch.randn(vocab, hidden)
    features = torch.randn(1, CONTEXT, model.fc.in_features)
    tokens = torch.full((1, model.block_size), model.mask_token_id)
    tokens[0, 0] = 7
    positions = torch.arange(CONTEXT + model.block_size)[None]
    print("{}", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        embedding = torch.nn.functional.embedding(tokens, table)
        out = model(target_hidden=features, noise_embedding=embedding, position_ids=positions)
        slots = out[:, 1:]
        model.propose(slots, tokens[:, 0], lambda x: torch.nn.functional.linear(x, table), 0.0)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "peak_mb": peak}), flush=True)


if __name__ == "__main__":
    main()
