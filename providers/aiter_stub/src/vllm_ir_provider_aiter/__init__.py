"""AMD's AITER kernels as provider `aiter` of vllm-ir: this distribution brings none, it calls those that are installed.

The hooks are in `hooks`, the implementations in `kernels`, what they refuse in `predicates` and `availability`, the
calls as torch ops for graphs in `torch_ops`. How AITER is called is in `calls`, what its functions must look like in
`symbols`, and the one place that imports it is `library`.
"""
