"""What a DFlash draft is.

Owns config, DraftSpec, tensor table, metadata table, tokenizer and type recipe; never reads tensor data, never prints.
Way in: spec.DraftSpec, config (a room of its own), metadata.
"""
