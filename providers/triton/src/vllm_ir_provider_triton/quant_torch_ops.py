"""The quantising kernels and fused_qk_norm_rope as torch ops, for whoever traces; as in `torch_ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from vllm_ir_provider_triton import calls, quant_calls
from vllm_ir_provider_triton.calls import DONATED, KEPT
from vllm_ir_provider_triton.torch_ops import NAMESPACE, dense

if TYPE_CHECKING:
    from collections.abc import Callable

_QK: Final = (
    "Tensor? query_weight, Tensor? key_weight, float epsilon, SymInt head_size, SymInt rotary_dim,"
    " Tensor cos_sin_cache, bool is_neox_style"
)


def _op(
    name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any] | None, *, writes: tuple[str, ...] = ()
) -> Any:
    """Return a torch op of this provider's namespace; one that returns nothing needs no fake."""
    made = torch.library.custom_op(f"{NAMESPACE}::{name}", run, mutates_args=writes, device_types="cuda", schema=schema)
    if fake is not None:
        made.register_fake(fake)
    return made


def _quantized(x: Tensor, dtype: torch.dtype, gated: bool) -> Tensor:
    """Return what quantised rows are like."""
    return x.new_empty(quant_calls.sizes(x, gated=gated), dtype=dtype)


def _scale(x: Tensor) -> Tensor:
    """Return what the scales of rows are like."""
    return x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


def _like_static(x: Tensor, scale: Tensor, dtype: torch.dtype, gated: bool) -> Tensor:
    """Return what the result of static_quant is like."""
    del scale
    return _quantized(x, dtype, gated)


def _like_token(x: Tensor, bound: Tensor | None, dtype: torch.dtype, gated: bool) -> tuple[Tensor, Tensor]:
    """Return what the results of token_quant are like."""
    del bound
    return _quantized(x, dtype, gated), _scale(x)


def _like_tensor(x: Tensor, bound: Tensor | None, dtype: torch.dtype, gated: bool) -> tuple[Tensor, Tensor]:
    """Return what the results of tensor_quant are like."""
    del bound
    return _quantized(x, dtype, gated), x.new_empty(1, dtype=torch.float32)


def _like_group(
    x: Tensor, group_size: int, column_major: bool, power: bool, dtype: torch.dtype, gated: bool
) -> tuple[Tensor, Tensor]:
    """Return what the results of group_quant are like."""
    del power
    out = _quantized(x, dtype, gated)
    return out, quant_calls.group_scales(x, out.shape[-1] // group_size, column_major)


def _like_norm_static(x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Return what the result of norm_static_quant is like."""
    del weight, scale, epsilon
    return x.new_empty(x.shape, dtype=dtype)


def _like_norm_token(
    x: Tensor, weight: Tensor | None, epsilon: float, bound: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return what the results of norm_token_quant are like."""
    del weight, epsilon, bound
    return x.new_empty(x.shape, dtype=dtype), _scale(x)


def _fused_static(
    x: Tensor, residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return normalised sums over a scale, and the sums."""
    return quant_calls.fused_static_quant(x, residual, weight, scale, epsilon, dtype, KEPT)


def _like_fused_static(
    x: Tensor, residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return what the results of fused_static_quant are like."""
    del residual, weight, scale, epsilon
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape)


def _fused_static_in_place(
    x: Tensor, residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype
) -> Tensor:
    """Return normalised sums over a scale; write the sums to the residual."""
    out, total = quant_calls.fused_static_quant(x, residual, weight, scale, epsilon, dtype, DONATED)
    if total is not residual:
        residual.copy_(total)
    return out


def _like_fused_static_in_place(
    x: Tensor, residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype
) -> Tensor:
    """Return what the result of fused_static_quant_ is like."""
    del residual, weight, scale, epsilon
    return x.new_empty(x.shape, dtype=dtype)


def _fused_token(
    x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, bound: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalised sums, each row over its own scale, the scales, and the sums."""
    return quant_calls.fused_token_quant(x, residual, weight, epsilon, bound, dtype, KEPT)


def _like_fused_token(
    x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, bound: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the results of fused_token_quant are like."""
    del residual, weight, epsilon, bound
    return x.new_empty(x.shape, dtype=dtype), _scale(x), x.new_empty(x.shape)


def _fused_token_in_place(
    x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, bound: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return normalised sums, each row over its own scale, and the scales; write the sums to the residual."""
    out, scale, total = quant_calls.fused_token_quant(x, residual, weight, epsilon, bound, dtype, DONATED)
    if total is not residual:
        residual.copy_(total)
    return out, scale


def _like_fused_token_in_place(
    x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, bound: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return what the results of fused_token_quant_ are like."""
    del residual, weight, epsilon, bound
    return x.new_empty(x.shape, dtype=dtype), _scale(x)


def _qk(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    epsilon: float,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key with each head normalised and turned."""
    weights = (query_weight, key_weight, epsilon)
    arguments = (positions, query, key, *weights, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    return calls.fused_qk_norm_rope(*arguments, KEPT)


def _like_qk(positions: Tensor, query: Tensor, key: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """Return what the results of fused_qk_norm_rope are like."""
    del positions, others
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _qk_in_place(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    epsilon: float,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> None:
    """Normalise and turn each head of query and key where they lie."""
    weights = (query_weight, key_weight, epsilon)
    arguments = (positions, query, key, *weights, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    results = calls.fused_qk_norm_rope(*arguments, DONATED)
    for given, result in zip((query, key), results, strict=True):
        if result is not given:
            given.copy_(result)


static_quant: Final = _op(
    "static_quant",
    "(Tensor x, Tensor scale, ScalarType dtype, bool gated) -> Tensor",
    quant_calls.static_quant,
    _like_static,
)
token_quant: Final = _op(
    "token_quant",
    "(Tensor x, Tensor? bound, ScalarType dtype, bool gated) -> (Tensor, Tensor)",
    quant_calls.token_quant,
    _like_token,
)
tensor_quant: Final = _op(
    "tensor_quant",
    "(Tensor x, Tensor? bound, ScalarType dtype, bool gated) -> (Tensor, Tensor)",
    quant_calls.tensor_quant,
    _like_tensor,
)
group_quant: Final = _op(
    "group_quant",
    "(Tensor x, SymInt group_size, bool column_major, bool power, ScalarType dtype, bool gated) -> (Tensor, Tensor)",
    quant_calls.group_quant,
    _like_group,
)
norm_static_quant: Final = _op(
    "norm_static_quant",
    "(Tensor x, Tensor? weight, Tensor scale, float epsilon, ScalarType dtype) -> Tensor",
    quant_calls.norm_static_quant,
    _like_norm_static,
)
norm_token_quant: Final = _op(
    "norm_token_quant",
    "(Tensor x, Tensor? weight, float epsilon, Tensor? bound, ScalarType dtype) -> (Tensor, Tensor)",
    quant_calls.norm_token_quant,
    _like_norm_token,
)
_OF_STATIC: Final = "Tensor? weight, Tensor scale, float epsilon, ScalarType dtype"
_OF_ROWS: Final = "Tensor? weight, float epsilon, Tensor? bound, ScalarType dtype"
fused_static_quant: Final = _op(
    "fused_static_quant",
    f"(Tensor x, Tensor residual, {_OF_STATIC}) -> (Tensor, Tensor)",
    _fused_static,
    _like_fused_static,
)
fused_static_quant_: Final = _op(
    "fused_static_quant_",
    f"(Tensor x, Tensor(a!) residual, {_OF_STATIC}) -> Tensor",
    _fused_static_in_place,
    _like_fused_static_in_place,
    writes=("residual",),
)
fused_token_quant: Final = _op(
    "fused_token_quant",
    f"(Tensor x, Tensor residual, {_OF_ROWS}) -> (Tensor, Tensor, Tensor)",
    _fused_token,
    _like_fused_token,
)
fused_token_quant_: Final = _op(
    "fused_token_quant_",
    f"(Tensor x, Tensor(a!) residual, {_OF_ROWS}) -> (Tensor, Tensor)",
    _fused_token_in_place,
    _like_fused_token_in_place,
    writes=("residual",),
)
fused_qk_norm_rope: Final = _op(
    "fused_qk_norm_rope",
    f"(Tensor positions, Tensor query, Tensor key, {_QK}) -> (Tensor, Tensor)",
    _qk,
    _like_qk,
)
fused_qk_norm_rope_: Final = _op(
    "fused_qk_norm_rope_",
    f"(Tensor positions, Tensor(a!) query, Tensor(b!) key, {_QK}) -> ()",
    _qk_in_place,
    None,
    writes=("query", "key"),
)


def donating_static(x: Tensor, residual: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """Return normalised sums over a scale, and the residual with the sums in it; new sums if it is not contiguous."""
    if not dense(residual):
        functional: tuple[Tensor, Tensor] = fused_static_quant(x, residual, *others)
        return functional
    out: Tensor = fused_static_quant_(x, residual, *others)
    return out, residual


def donating_token(x: Tensor, residual: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalised sums, their scales, and the residual as `donating_static` does."""
    if not dense(residual):
        functional: tuple[Tensor, Tensor, Tensor] = fused_token_quant(x, residual, *others)
        return functional
    out, scale = fused_token_quant_(x, residual, *others)
    return out, scale, residual


def donating_qk(positions: Tensor, query: Tensor, key: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """Return query and key, normalised and turned in place where they are contiguous; new tensors otherwise."""
    if not (dense(query) and dense(key)):
        functional: tuple[Tensor, Tensor] = fused_qk_norm_rope(positions, query, key, *others)
        return functional
    fused_qk_norm_rope_(positions, query, key, *others)
    return query, key
