"""Parts of decoder layers as models write them: what each fusion replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS, WIDTH, HEAD = 5, 32, 16
E5M2 = torch.float8_e5m2
NEOX, COLUMN_MAJOR = True, True


def rows(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return values of a normal distribution, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


X, R, W = rows(TOKENS, WIDTH), rows(TOKENS, WIDTH).cos(), rows(WIDTH)
GATED, QKV, HEAD_W = rows(TOKENS, 2 * WIDTH), rows(TOKENS, 8 * HEAD), rows(HEAD)
SCALE, BOUND = torch.tensor([0.05]), torch.tensor([2.0])
POSITIONS, ANGLES = torch.tensor([3, 0, 7, 1, 1]), rows(8, HEAD, dtype=torch.float32)


def add_then_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    """Add and normalise."""
    total = x + residual
    return ops.rms_norm(total, weight, 1e-6), total


def add_in_float32(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    """Add in float32, normalise that, and round both."""
    total = x.float() + residual.float()
    return ops.rms_norm(total, weight, epsilon=1e-6).to(x.dtype), total.to(x.dtype)


def add_without_weight(x: Tensor, residual: Tensor) -> Any:
    """Add and normalise half of each row, without a weight; nobody wants the sum."""
    return ops.rms_norm(residual + x, None, 1e-6, 16)


def norm_then_static(x: Tensor, weight: Tensor, scale: Tensor) -> Any:
    """Normalise and quantise by a given scale."""
    return ops.static_quant_fp8(ops.rms_norm(x, weight, 1e-6), scale, E5M2)


def add_norm_then_static(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> Any:
    """Add, normalise and quantise by a given scale; the sum is wanted, too."""
    normal, total = ops.fused_add_rms_norm(x, residual, weight, 1e-6)
    return ops.static_quant_fp8(normal, scale=scale), total * 2


def norm_then_token(x: Tensor, weight: Tensor) -> Any:
    """Normalise and quantise each token by a scale of its own."""
    return ops.dynamic_quant_fp8(ops.rms_norm(x, weight, 1e-6))


def norm_then_tensor(x: Tensor, weight: Tensor, bound: Tensor) -> Any:
    """Normalise and quantise by one scale, with a bound."""
    return ops.dynamic_quant_fp8(ops.rms_norm(x, weight, 1e-6), per_token=False, scale_ub=bound)


def add_norm_then_token(x: Tensor, residual: Tensor) -> Any:
    """Add, normalise without a weight and quantise each token."""
    normal, total = ops.fused_add_rms_norm(x, residual, None, 1e-6)
    q, scale = ops.dynamic_quant_fp8(normal, per_token=True)
    return q, scale, total


def gate_then_static(x: Tensor, scale: Tensor) -> Any:
    """Gate and quantise by a given scale."""
    return ops.static_quant_fp8(ops.silu_and_mul(x), scale)


def gate_then_token(x: Tensor) -> Any:
    """Gate and quantise each token."""
    return ops.dynamic_quant_fp8(ops.silu_and_mul(x), dtype=E5M2)


def gate_then_groups(x: Tensor) -> Any:
    """Gate and quantise groups of eight, scales of a group next to each other."""
    return ops.dynamic_group_quant_fp8(ops.silu_and_mul(x), 8, COLUMN_MAJOR, use_ue8m0=True)


def heads_in_a_dimension(positions: Tensor, qkv: Tensor, weight: Tensor, angles: Tensor) -> Any:
    """Normalise the heads of a packed projection where they are, and turn them."""
    query, key, value = qkv.split([4 * HEAD, 2 * HEAD, 2 * HEAD], -1)
    query = ops.rms_norm(query.view(*query.shape[:-1], 4, HEAD), weight, 1e-6).view(query.shape)
    key = ops.rms_norm(key.view(*key.shape[:-1], 2, HEAD), weight, 1e-6).view(key.shape)
    return *ops.rotary_embedding(positions, query, key, HEAD, HEAD, angles, NEOX), value


def heads_as_a_matrix(positions: Tensor, qkv: Tensor, weight: Tensor, angles: Tensor) -> Any:
    """Normalise heads as rows of a matrix, and turn half of each as GPT-J does."""
    query, key, _ = (part.contiguous() for part in qkv.split([4 * HEAD, 2 * HEAD, 2 * HEAD], -1))
    query = ops.rms_norm(query.view(-1, HEAD), weight, 1e-6).view(query.shape)
    key = ops.rms_norm(key.view(-1, HEAD), None, 1e-6).view(key.shape)
    return ops.rotary_embedding(positions, query, key, HEAD, 8, angles[:, :8].contiguous(), not NEOX)


def heads_that_are_given(positions: Tensor, qkv: Tensor, weight: Tensor, angles: Tensor) -> Any:
    """Normalise heads that are in a dimension of their own, and turn them there."""
    query, key, _ = (part.unflatten(-1, (-1, HEAD)) for part in qkv.split([4 * HEAD, 2 * HEAD, 2 * HEAD], -1))
    query, key = ops.rms_norm(query, weight, 1e-6), ops.rms_norm(key, weight, 1e-6)
    return ops.rotary_embedding(positions, query, key, HEAD, HEAD, angles, NEOX)


@dataclass(frozen=True)
class Part:
    """A part that a fusion replaces by one op.

    Attributes:
        fusion: which one.
        function: the part.
        args: what it is called with.
        op: what stands in its place.
    """

    fusion: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    op: str


WIDE = (X.float(), R.float(), W.float())
HEADS = (POSITIONS, QKV, HEAD_W, ANGLES)
PARTS = [
    Part("add_norm", add_then_norm, WIDE, "fused_add_rms_norm"),
    Part("add_norm", add_in_float32, (X, R, W), "fused_add_rms_norm"),
    Part("add_norm", add_in_float32, (X.half(), R.half(), W.half()), "fused_add_rms_norm"),
    Part("add_norm", add_in_float32, (X, R, W.float()), "fused_add_rms_norm"),
    Part("add_norm", add_without_weight, WIDE[:2], "fused_add_rms_norm"),
    Part("norm_quant", norm_then_static, (X, W, SCALE), "rms_norm_static_quant_fp8"),
    Part("norm_quant", norm_then_static, (X.float(), W.float(), SCALE[0]), "rms_norm_static_quant_fp8"),
    Part("norm_quant", add_norm_then_static, (X, R, W, SCALE), "fused_add_rms_norm_static_quant_fp8"),
    Part("norm_quant", norm_then_token, (X, W), "rms_norm_dynamic_quant_fp8"),
    Part("norm_quant", norm_then_tensor, (X, W, BOUND), "rms_norm_dynamic_quant_fp8"),
    Part("norm_quant", add_norm_then_token, (X, R), "fused_add_rms_norm_dynamic_quant_fp8"),
    Part("activation_quant", gate_then_static, (GATED, SCALE), "silu_and_mul_static_quant_fp8"),
    Part("activation_quant", gate_then_token, (GATED,), "silu_and_mul_dynamic_quant_fp8"),
    Part("activation_quant", gate_then_groups, (GATED,), "silu_and_mul_group_quant_fp8"),
    Part("qk_norm_rope", heads_in_a_dimension, HEADS, "fused_qk_norm_rope"),
    Part("qk_norm_rope", heads_as_a_matrix, HEADS, "fused_qk_norm_rope"),
    Part("qk_norm_rope", heads_that_are_given, HEADS, "fused_qk_norm_rope"),
]
