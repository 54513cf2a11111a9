"""Triton kernels for NVIDIA and AMD GPUs, as providers `triton` and `triton_batch_invariant` of vllm-ir.

The hooks are in `hooks`, the implementations in `kernels` and `invariant`, what they refuse in `predicates`, the same
kernels as torch ops for graphs in `torch_ops`. A call goes through `calls`, `geometry` or `rotation` (what is launched)
and `loading` (on which device); how wide a launch is comes from `configuration`. The kernels are in `programs`.
"""
