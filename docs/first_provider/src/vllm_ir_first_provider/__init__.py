"""An example provider for vllm-ir: `rms_norm`, whole and installable, made to be copied.

The hooks are in `hooks`, the kernel in `kernels`, what can be known without importing either in
`vllm_ir_provider.toml` beside this file.
"""
