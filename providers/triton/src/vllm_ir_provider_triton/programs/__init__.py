"""The kernels in Triton's language, the only modules that import Triton; they are imported when the first one runs.

What they are launched with is left to `geometry` and `rotation`; how they are compiled, to `compiling`.
"""
