"""The engine in a process of its own: a job (JSON) on stdin, one line of results on stdout, its log on stderr.

A script that imports nothing of ours: it may run out of memory, abort or hang, and its parent goes on.
"""

from __future__ import annotations

import json
import sys
from typing import Any

RESULT = "RESULT "


def main() -> None:
    """Carry out the job."""
    job: dict[str, Any] = json.load(sys.stdin)
    _limit_memory(job["memory"])
    import xllamacpp

    server = xllamacpp.Server(_params(xllamacpp, job))
    prompts = job["prompts"]
    if job["fill"]:
        prompts = [_filled(server, prompt, job) for prompt in prompts]
    _complete(server, prompts[0], job["n_predict"])  # warm-up: not counted
    runs = [[_complete(server, prompt, job["n_predict"]) for prompt in prompts] for _ in range(job["repeats"])]
    sys.stdout.write("\n" + RESULT + json.dumps(runs) + "\n")
    sys.stdout.flush()


def _limit_memory(size: int | None) -> None:
    if size is None:
        return
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _params(engine: Any, job: dict[str, Any]) -> Any:
    params = engine.CommonParams()
    params.model.path = job["target"]
    params.n_ctx = job["n_ctx"]
    params.n_parallel = 1
    params.warmup = False
    params.n_gpu_layers = job["gpu_layers"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
    if job["draft"] is not None:
        draft = params.speculative.draft
        params.speculative.types = [engine.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH]
        draft.mparams.path = job["draft"]
        draft.n_gpu_layers = job["gpu_layers"]
        draft.n_max, draft.p_min = job["n_max"], job["p_min"]
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = job["threads"]
    return params


def _filled(server: Any, prompt: str, job: dict[str, Any]) -> str:
    """The prompt behind so much other text that its answer ends where the context does, or a little before."""
    room = job["n_ctx"] - job["n_predict"]
    filler: str = job["filler"] * (1 + 16 * room // len(job["filler"]))
    sample = filler[: max(8, room // 4)]
    per_token = len(sample) / _complete(server, sample, 1)["prompt_n"]
    for share in (0.95, 0.85, 0.7, 0.5):
        size = int(share * room * per_token) - len(prompt)
        filled = filler[: max(0, size)] + prompt
        try:
            _complete(server, filled, 1)
        except RuntimeError:  # too long: the engine says so
            continue
        return filled
    return prompt


def _complete(server: Any, prompt: str, n_predict: int) -> dict[str, Any]:
    answer = server.handle_completions(
        {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "cache_prompt": False}
    )
    if "choices" not in answer:
        raise RuntimeError(json.dumps(answer.get("error", answer)))
    timings = answer["timings"]
    keys = ("prompt_n", "predicted_n", "predicted_ms", "draft_n", "draft_n_accepted")
    return {"text": answer["choices"][0]["text"], **{key: timings.get(key, 0) for key in keys}}


if __name__ == "__main__":
    main()
