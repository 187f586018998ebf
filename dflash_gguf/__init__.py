"""Convert, inspect, validate and run DFlash drafts as GGUF."""
