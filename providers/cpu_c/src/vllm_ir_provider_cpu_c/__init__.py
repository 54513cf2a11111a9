"""Kernels in C++ for x86-64 and Arm CPUs, as provider `cpu_c` of vllm-ir.

The hooks are in `hooks`, the implementations in `kernels`, what they refuse in `predicates`, the same kernels as torch
ops for graphs in `torch_ops`, and the compiled module, connected to torch, in `library`.
"""
