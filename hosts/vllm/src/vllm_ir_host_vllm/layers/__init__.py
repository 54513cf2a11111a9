"""Layers of vLLM that run on ops of vllm-ir: which class becomes which, and how vLLM is told."""
