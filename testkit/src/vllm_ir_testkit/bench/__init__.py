"""Timing every provider that can run an op, side by side in one process.

How the numbers are shown is left to `table` and `plot`; who printed them, to the command line.
"""
