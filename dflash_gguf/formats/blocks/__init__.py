"""Weight blocks: quantize and dequantize, bit for bit as ggml's reference; MXFP8 as ModelOpt's.

Owns kernels; never reads files or picks a type.
Way in: codec.quantize, codec.dequantize, codec.warm_up; mxfp8.encode, mxfp8.decode.
"""
