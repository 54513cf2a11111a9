"""The kernels as torch ops, for whoever traces: graphs keep one opaque node each, whose schema and fake core knows.

Eager calls do not come here; they would pay the dispatcher more than the kernel.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from vllm_ir import make_torch_op

from vllm_ir_provider_cpu_c import quantization
from vllm_ir_provider_cpu_c.library import native
from vllm_ir_provider_cpu_c.quantization import GATED, PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from vllm_ir.kernel_op import TorchOp

NAMESPACE: Final = "vllm_ir_cpu_c"
SILU, GELU, GELU_TANH = range(3)

_SUM: Final = ("x_residual",)
"""What of the donated tensors a quantising kernel can write: 8-bit results have no place in x."""


def _define(op: str, kernel: Callable[..., Any], writes: Sequence[str] | None = None) -> TorchOp:
    """Return a kernel as a torch op for tensors of the CPU."""
    return make_torch_op(op, kernel, namespace=NAMESPACE, device_types="cpu", writes=writes)


def _quantising(op: str, call: Callable[..., quantization.Call], writes: Sequence[str] | None = None) -> TorchOp:
    """Return the compiled module's `quant`, told what an op's arguments say, as a torch op."""
    return _define(op, lambda *args: native.quant(*call(*args)), writes)


def _silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    return native.gate(x, SILU)


def _gelu_and_mul(x: Tensor, approximate: str) -> Tensor:
    """Return gelu(gate) * up."""
    return native.gate(x, GELU_TANH if approximate == "tanh" else GELU)


rms_norm = _define("rms_norm", native.rms_norm)
fused_add_rms_norm = _define("fused_add_rms_norm", native.fused_add_rms_norm)
silu_and_mul = _define("silu_and_mul", _silu_and_mul)
gelu_and_mul = _define("gelu_and_mul", _gelu_and_mul)
rotary_embedding = _define("rotary_embedding", native.rotary_embedding)
fused_qk_norm_rope = _define("fused_qk_norm_rope", native.fused_qk_norm_rope)

static_quant_fp8 = _quantising("static_quant_fp8", partial(quantization.static, source=PLAIN))
dynamic_quant_fp8 = _quantising("dynamic_quant_fp8", partial(quantization.dynamic, source=PLAIN))
dynamic_group_quant_fp8 = _quantising("dynamic_group_quant_fp8", partial(quantization.groups, source=PLAIN))
rms_norm_static_quant_fp8 = _quantising("rms_norm_static_quant_fp8", quantization.norm_static)
rms_norm_dynamic_quant_fp8 = _quantising("rms_norm_dynamic_quant_fp8", quantization.norm_dynamic)
fused_add_rms_norm_static_quant_fp8 = _quantising("fused_add_rms_norm_static_quant_fp8", quantization.sum_static, _SUM)
fused_add_rms_norm_dynamic_quant_fp8 = _quantising(
    "fused_add_rms_norm_dynamic_quant_fp8", quantization.sum_dynamic, _SUM
)
silu_and_mul_static_quant_fp8 = _quantising("silu_and_mul_static_quant_fp8", partial(quantization.static, source=GATED))
silu_and_mul_dynamic_quant_fp8 = _quantising(
    "silu_and_mul_dynamic_quant_fp8", partial(quantization.dynamic, source=GATED)
)
silu_and_mul_group_quant_fp8 = _quantising("silu_and_mul_group_quant_fp8", partial(quantization.groups, source=GATED))
