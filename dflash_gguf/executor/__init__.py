"""The numpy reference decode, to be read beside the paper.

Owns the math; never guesses a value the file does not hold.
Way in: DraftModel, generate.
"""
