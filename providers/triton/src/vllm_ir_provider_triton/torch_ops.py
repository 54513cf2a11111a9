"""The kernels as torch ops, for whoever traces: graphs keep one opaque node each, whose schema and fake core knows.

Eager calls do not come here; they would pay the dispatcher more than the kernel. What the batch-invariant provider
launches otherwise has a namespace of its own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from vllm_ir import make_torch_op

from vllm_ir_provider_triton import calls, quant_calls
from vllm_ir_provider_triton.calls import FIXED, FREE
from vllm_ir_provider_triton.quant_calls import GATED, PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.kernel_op import TorchOp

NAMESPACE: Final = "vllm_ir_triton"
FIXED_NAMESPACE: Final = "vllm_ir_triton_batch_invariant"

_SUM: Final = ("x_residual",)
"""What of the donated tensors a quantising kernel can write: 8-bit results have no place in x."""


def _define(
    op: str, kernel: Callable[..., Any], namespace: str = NAMESPACE, writes: Sequence[str] | None = None
) -> TorchOp:
    """Return a kernel as a torch op for tensors of a GPU."""
    return make_torch_op(op, kernel, namespace=namespace, device_types="cuda", writes=writes)


rms_norm = _define("rms_norm", partial(calls.rms_norm, fixed=FREE))
fused_add_rms_norm = _define("fused_add_rms_norm", partial(calls.fused_add_rms_norm, fixed=FREE))
silu_and_mul = _define("silu_and_mul", partial(calls.silu_and_mul, fixed=FREE))
gelu_and_mul = _define("gelu_and_mul", partial(calls.gelu_and_mul, fixed=FREE))
rotary_embedding = _define("rotary_embedding", calls.rotary_embedding)
fused_qk_norm_rope = _define("fused_qk_norm_rope", calls.fused_qk_norm_rope)

fixed_rms_norm = _define("rms_norm", partial(calls.rms_norm, fixed=FIXED), FIXED_NAMESPACE)
fixed_fused_add_rms_norm = _define(
    "fused_add_rms_norm", partial(calls.fused_add_rms_norm, fixed=FIXED), FIXED_NAMESPACE
)
fixed_silu_and_mul = _define("silu_and_mul", partial(calls.silu_and_mul, fixed=FIXED), FIXED_NAMESPACE)
fixed_gelu_and_mul = _define("gelu_and_mul", partial(calls.gelu_and_mul, fixed=FIXED), FIXED_NAMESPACE)

static_quant_fp8 = _define("static_quant_fp8", partial(quant_calls.static_quant, gated=PLAIN))
dynamic_quant_fp8 = _define("dynamic_quant_fp8", partial(quant_calls.dynamic_quant, gated=PLAIN))
dynamic_group_quant_fp8 = _define("dynamic_group_quant_fp8", partial(quant_calls.group_quant, gated=PLAIN))
silu_and_mul_static_quant_fp8 = _define("silu_and_mul_static_quant_fp8", partial(quant_calls.static_quant, gated=GATED))
silu_and_mul_dynamic_quant_fp8 = _define(
    "silu_and_mul_dynamic_quant_fp8", partial(quant_calls.dynamic_quant, gated=GATED)
)
silu_and_mul_group_quant_fp8 = _define("silu_and_mul_group_quant_fp8", partial(quant_calls.group_quant, gated=GATED))
rms_norm_static_quant_fp8 = _define("rms_norm_static_quant_fp8", quant_calls.norm_static_quant)
rms_norm_dynamic_quant_fp8 = _define("rms_norm_dynamic_quant_fp8", quant_calls.norm_token_quant)
fused_add_rms_norm_static_quant_fp8 = _define(
    "fused_add_rms_norm_static_quant_fp8", quant_calls.fused_static_quant, writes=_SUM
)
fused_add_rms_norm_dynamic_quant_fp8 = _define(
    "fused_add_rms_norm_dynamic_quant_fp8", quant_calls.fused_token_quant, writes=_SUM
)
