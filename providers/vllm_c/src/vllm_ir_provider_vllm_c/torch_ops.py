"""The kernels as torch ops, for whoever traces: graphs keep one opaque node each, whose schema and fake core knows.

Eager calls do not come here; they would pay the dispatcher more than the kernel.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from vllm_ir import make_torch_op

from vllm_ir_provider_vllm_c import calls, quant_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.kernel_op import TorchOp

NAMESPACE: Final = "vllm_ir_vllm_c"

_SUM: Final = ("x_residual",)
"""What of the donated tensors a quantising kernel can write: 8-bit results have no place in x."""


def _define(op: str, kernel: Callable[..., Any], writes: Sequence[str] | None = None) -> TorchOp:
    """Return a kernel as a torch op for CUDA tensors."""
    return make_torch_op(op, kernel, namespace=NAMESPACE, device_types="cuda", writes=writes)


rms_norm = _define("rms_norm", calls.rms_norm)
fused_add_rms_norm = _define("fused_add_rms_norm", calls.fused_add_rms_norm)
silu_and_mul = _define("silu_and_mul", calls.silu_and_mul)
gelu_and_mul = _define("gelu_and_mul", calls.gelu_and_mul)
rotary_embedding = _define("rotary_embedding", calls.rotary_embedding)
fused_qk_norm_rope = _define("fused_qk_norm_rope", calls.fused_qk_norm_rope)

static_quant_fp8 = _define("static_quant_fp8", quant_calls.static)
dynamic_quant_fp8 = _define("dynamic_quant_fp8", quant_calls.dynamic)
dynamic_group_quant_fp8 = _define("dynamic_group_quant_fp8", quant_calls.groups)
rms_norm_static_quant_fp8 = _define("rms_norm_static_quant_fp8", quant_calls.norm_static)
rms_norm_dynamic_quant_fp8 = _define("rms_norm_dynamic_quant_fp8", quant_calls.norm_dynamic)
fused_add_rms_norm_static_quant_fp8 = _define(
    "fused_add_rms_norm_static_quant_fp8", quant_calls.fused_norm_static, _SUM
)
fused_add_rms_norm_dynamic_quant_fp8 = _define(
    "fused_add_rms_norm_dynamic_quant_fp8", quant_calls.fused_norm_dynamic, _SUM
)
silu_and_mul_static_quant_fp8 = _define("silu_and_mul_static_quant_fp8", partial(quant_calls.static, gated=True))
silu_and_mul_dynamic_quant_fp8 = _define("silu_and_mul_dynamic_quant_fp8", partial(quant_calls.dynamic, gated=True))
silu_and_mul_group_quant_fp8 = _define("silu_and_mul_group_quant_fp8", partial(quant_calls.groups, gated=True))
