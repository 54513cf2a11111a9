"""Kernels in CUDA C for NVIDIA GPUs, as provider `vllm_c` of vllm-ir.

The hooks are in `hooks`, the implementations in `kernels`, what they refuse in `predicates`, the same kernels as torch
ops for graphs in `torch_ops`. A call goes through `calls`, `geometry` (what is launched) and `loading` (on which
device); kernels come from `variants` through `compiling` and `cubins`. The sources are in the folder `csrc`.
"""
