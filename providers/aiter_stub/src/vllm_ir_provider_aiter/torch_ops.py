"""The calls as torch ops: graphs keep one opaque node each, whose schema and fake core knows, without AITER.

Which device they run on is not said here: the manifest gives this provider tensors of ROCm alone.
"""

from __future__ import annotations

from typing import Final

from vllm_ir import make_torch_op

from vllm_ir_provider_aiter import calls

NAMESPACE: Final = "vllm_ir_aiter"

rms_norm = make_torch_op("rms_norm", calls.rms_norm, namespace=NAMESPACE)
fused_add_rms_norm = make_torch_op("fused_add_rms_norm", calls.fused_add_rms_norm, namespace=NAMESPACE, writes=())
silu_and_mul = make_torch_op("silu_and_mul", calls.silu_and_mul, namespace=NAMESPACE)
rotary_embedding = make_torch_op("rotary_embedding", calls.rotary_embedding, namespace=NAMESPACE)
