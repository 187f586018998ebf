"""What makes a draft file silently bad.

Owns rules, runner and renderers; never prints and never repairs.
Way in: check().
"""
