"""What bytes mean, and nothing else: GGUF, safetensors, weight blocks.

Owns layouts and arithmetic; never opens a path and never knows what a draft is.
Way in: gguf.scan, gguf.emit, safetensors, blocks.
"""
