"""conversion_manifest.json: what was made, from what, and what it cost. No time, host or path stands in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_gguf.mxfp8.checkpoint_plan import CheckpointPlan
from dflash_gguf.mxfp8.encode import Statistics

SCHEMA = 1
FORMAT = {
    "weight_dtype": "float8_e4m3fn",
    "scale_dtype": "uint8",
    "scale_encoding": "e8m0_biased_127",
    "block": [1, 32],
    "layout": "row_major_unswizzled",
    "scale_rule": "ceil(log2(amax/448))",
}


def manifest(
    plan: CheckpointPlan,
    sources: Mapping[str, str],
    outputs: Mapping[str, str],
    weights: Mapping[str, Statistics],
    aggregate: Statistics,
) -> dict[str, Any]:
    """The manifest's document; `sources` and `outputs` are sha256 by file name."""
    identity = plan.identity
    model = f"{identity.organization}/{identity.name}" if identity.organization else identity.name
    return {
        "schema": SCHEMA,
        "converter": "dflash-gguf",
        "source": {"model": model, "revision": identity.revision, "files_sha256": dict(sorted(sources.items()))},
        "format": FORMAT,
        "exclude_modules": list(plan.exclude),
        "output_files_sha256": dict(sorted(outputs.items())),
        "coverage": coverage(plan),
        "aggregate_error": {**aggregate.as_json(), "sqnr_db": aggregate.sqnr_db},
        "weights": {
            weight.stored.name: {"shape": list(weight.stored.shape), **weights[weight.stored.name].as_json()}
            for weight in plan.weights
            if weight.scale
        },
    }


def coverage(plan: CheckpointPlan) -> dict[str, int]:
    """How many tensors and weights are quantized, how many are as they were."""
    quantized = [weight.source.n_weights for weight in plan.weights if weight.scale]
    kept = [weight.source.n_weights for weight in plan.weights if not weight.scale]
    return {
        "tensors": len(plan.weights),
        "quantized": len(quantized),
        "kept": len(kept),
        "elements_quantized": sum(quantized),
        "elements_kept": sum(kept),
    }
