"""Weight blocks: quantize and dequantize, bit for bit as ggml's reference.

Owns kernels; never reads files or picks a type.
Way in: quantize, dequantize.
"""
