"""The kernels as torch ops, for whoever traces: graphs keep one opaque node each, and the fakes tell its results.

Eager calls do not come here; they would pay the dispatcher more than the kernel. Ops with a trailing underscore write
their activations and return nothing, since torch wants no op to return its inputs.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from vllm_ir_provider_cpu_c.library import native

NAMESPACE: Final = "vllm_ir_cpu_c"
SILU, GELU, GELU_TANH = range(3)
DONATED: Final = True
KEPT: Final = False

_NORM: Final = "Tensor? weight, float epsilon, SymInt? variance_size=None"
ROTARY: Final = "SymInt head_size, SymInt rotary_dim, Tensor cos_sin_cache, bool is_neox_style"


def like(x: Tensor, last: int | None = None) -> Tensor:
    """Return a new contiguous tensor of x's shape, with another last size if one is given."""
    return x.new_empty(x.shape if last is None else (*x.shape[:-1], last))


@torch.library.custom_op(
    f"{NAMESPACE}::rms_norm", mutates_args=(), device_types="cpu", schema=f"(Tensor x, {_NORM}) -> Tensor"
)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return rows of x over their root mean square, times the weight."""
    return native.rms_norm(x, weight, epsilon, variance_size)


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return what the result is like."""
    del weight, epsilon, variance_size
    return like(x)


@torch.library.custom_op(
    f"{NAMESPACE}::fused_add_rms_norm",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor x, Tensor x_residual, {_NORM}) -> (Tensor, Tensor)",
)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum and the sum."""
    return native.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size, KEPT)


@fused_add_rms_norm.register_fake
def _(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return what the results are like."""
    del x_residual, weight, epsilon, variance_size
    return like(x), like(x)


@torch.library.custom_op(
    f"{NAMESPACE}::fused_add_rms_norm_",
    mutates_args=("x", "x_residual"),
    device_types="cpu",
    schema=f"(Tensor(a!) x, Tensor(b!) x_residual, {_NORM}) -> ()",
)
def fused_add_rms_norm_(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> None:
    """Write the normalised sum to x and the sum to x_residual."""
    results = native.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size, DONATED)
    settle((x, x_residual), results)


@torch.library.custom_op(
    f"{NAMESPACE}::silu_and_mul", mutates_args=(), device_types="cpu", schema="(Tensor x) -> Tensor"
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    return native.gate(x, SILU)


@silu_and_mul.register_fake
def _(x: Tensor) -> Tensor:
    """Return what the result is like."""
    return like(x, x.shape[-1] // 2)


@torch.library.custom_op(
    f"{NAMESPACE}::gelu_and_mul",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor x, str approximate='none') -> Tensor",
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Return gelu(gate) * up."""
    return native.gate(x, GELU_TANH if approximate == "tanh" else GELU)


@gelu_and_mul.register_fake
def _(x: Tensor, approximate: str = "none") -> Tensor:
    """Return what the result is like."""
    del approximate
    return like(x, x.shape[-1] // 2)


@torch.library.custom_op(
    f"{NAMESPACE}::rotary_embedding",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor positions, Tensor query, Tensor key, {ROTARY}) -> (Tensor, Tensor)",
)
def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key with each head turned."""
    return native.rotary_embedding(positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style, KEPT)


@rotary_embedding.register_fake
def _(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return what the results are like."""
    del positions, head_size, rotary_dim, cos_sin_cache, is_neox_style
    return like(query), like(key)


@torch.library.custom_op(
    f"{NAMESPACE}::rotary_embedding_",
    mutates_args=("query", "key"),
    device_types="cpu",
    schema=f"(Tensor positions, Tensor(a!) query, Tensor(b!) key, {ROTARY}) -> ()",
)
def rotary_embedding_(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> None:
    """Turn each head of query and key where they lie."""
    results = native.rotary_embedding(
        positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style, DONATED
    )
    settle((query, key), results)


def settle(donated: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
    """Copy back what the kernel could not write in place: tensors that are not contiguous, or share memory."""
    for given, result in zip(donated, results, strict=True):
        if result is not given:
            given.copy_(result)


def dense(x: Tensor) -> bool:
    """Tell whether a tensor is contiguous, judged without its leading size; False where that would decide."""
    strides, sizes = x.stride(), x.shape
    return strides[-1] == 1 and all(strides[i] == strides[i + 1] * sizes[i + 1] for i in range(x.dim() - 1))


def donating_fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None
) -> tuple[Tensor, Tensor]:
    """Return x and x_residual, written in place where they are contiguous; new tensors otherwise."""
    if not (dense(x) and dense(x_residual)):
        functional: tuple[Tensor, Tensor] = fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
        return functional
    fused_add_rms_norm_(x, x_residual, weight, epsilon, variance_size)
    return x, x_residual


def donating_rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key, turned in place where they are contiguous; new tensors otherwise."""
    arguments = (positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    if not (dense(query) and dense(key)):
        functional: tuple[Tensor, Tensor] = rotary_embedding(*arguments)
        return functional
    rotary_embedding_(*arguments)
    return query, key
