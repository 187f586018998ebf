"""What people read of a draft besides its findings: its description, its model card, its launch lines."""
