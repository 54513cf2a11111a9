"""The implementations of the quantising ops and of fused_qk_norm_rope, the same for both providers.

A largest magnitude is the same in any order, and the float32 sums of these kernels are made in one order: no bit of a
row depends on the batch, or on a launch, which goes by the size of a row alone. One scale for a whole tensor does
depend on the batch, and is `triton`'s alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_ir import implements

from vllm_ir_provider_triton import invariant, kernels, norm_quant_kernels, predicates, quant_kernels, quant_predicates

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir import IrOpImpl

_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    each.__name__: each
    for each in (
        quant_kernels.static_quant_fp8,
        quant_kernels.dynamic_quant_fp8,
        quant_kernels.dynamic_group_quant_fp8,
        norm_quant_kernels.rms_norm_static_quant_fp8,
        norm_quant_kernels.fused_add_rms_norm_static_quant_fp8,
        norm_quant_kernels.rms_norm_dynamic_quant_fp8,
        norm_quant_kernels.fused_add_rms_norm_dynamic_quant_fp8,
        quant_kernels.silu_and_mul_static_quant_fp8,
        quant_kernels.silu_and_mul_dynamic_quant_fp8,
        quant_kernels.silu_and_mul_group_quant_fp8,
        norm_quant_kernels.fused_qk_norm_rope,
    )
}


def _implementations(provider: str, *, batch_invariant: bool) -> dict[str, IrOpImpl]:
    """Return the declarations of one provider by op."""
    found = {}
    for op, function in _FUNCTIONS.items():
        functional = getattr(norm_quant_kernels, f"functional_{op}", None)
        rooms = predicates if op == "fused_qk_norm_rope" else quant_predicates
        found[op] = implements(
            op,
            provider=provider,
            supports_args=getattr(rooms, f"fixed_{op}" if batch_invariant else op, getattr(rooms, op)),
            inplace=functional is not None,
            functional=functional,
            batch_invariant=batch_invariant,
        )(function)
    return found


FREE: Final = _implementations(kernels.PROVIDER, batch_invariant=False)
FIXED: Final = _implementations(invariant.PROVIDER, batch_invariant=True)
