"""The GGUF container.

Owns header scanning and emission; never interprets a key beyond general.alignment.
Way in: scan.scan_header, emit.encode_header, values, types.
"""
