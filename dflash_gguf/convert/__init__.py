"""Checkpoint to GGUF.

plan decides and sizes everything before a byte is written, run streams it; neither prints.
Way in: convert().
"""
