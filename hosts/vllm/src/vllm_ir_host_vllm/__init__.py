"""Brings the kernels of vllm-ir's providers into stock vLLM; vLLM calls `plugin.register` in every process.

`starting` is the way through it: which mode, which implementations, which layers, and what is said about it.
"""
