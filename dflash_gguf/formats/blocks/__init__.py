"""Weight blocks: quantize and dequantize, bit for bit as ggml's reference; MXFP8 as ModelOpt's.

Owns kernels; never reads files or picks a type.
Way in: quantize, dequantize, warm_up; mxfp8.encode, mxfp8.decode. Kernels are imported when first used.
"""

from dflash_gguf.formats.blocks.codec import (
    DEQUANTIZABLE,
    QUANTIZABLE,
    announced,
    bf16_to_f32,
    dequantize,
    quantize,
    warm_up,
)

__all__ = [
    "DEQUANTIZABLE",
    "QUANTIZABLE",
    "announced",
    "bf16_to_f32",
    "dequantize",
    "quantize",
    "warm_up",
]
