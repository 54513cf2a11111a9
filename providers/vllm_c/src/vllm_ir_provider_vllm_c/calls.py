"""One function an op: make the outputs, plan the launch, run it. What may be called at all is left to `predicates`.

Donated tensors are written where they lie if they are contiguous and share no memory, neither with each other nor with
what is read beside them; otherwise they are left alone and the results are new contiguous tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_ir_provider_vllm_c import geometry, loading, rotation, vllm_ops

if TYPE_CHECKING:
    from torch import Tensor

SILU: Final = "SILU"
GELU: Final = "GELU"
GELU_TANH: Final = "GELU_TANH"
DONATED: Final = True
KEPT: Final = False


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None) -> Tensor:
    """Return rows of x over their root mean square, times the weight."""
    out = x.new_empty(x.shape)
    loading.run(geometry.norm("rms_norm", x, None, weight, epsilon, variance_size, out, None), x.device)
    return out


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None, donated: bool
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum and the sum, in the memory of x and x_residual if they are donated and apart."""
    outs = results(x, x_residual, donated, weight)
    launch = geometry.norm("fused_add_rms_norm", x, x_residual, weight, epsilon, variance_size, *outs)
    loading.run(launch, x.device)
    return outs


def gate(x: Tensor, activation: str) -> Tensor:
    """Return an activation of the first half of rows, times the second half."""
    out = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
    theirs = vllm_ops.gate(activation)
    if theirs is not None and dense(x) and out.numel():
        theirs(out, x)
        return out
    loading.run(geometry.gate(activation, x, out), x.device)
    return out


def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    return gate(x, SILU)


def gelu_and_mul(x: Tensor, approximate: str) -> Tensor:
    """Return gelu(gate) * up."""
    return gate(x, GELU_TANH if approximate == "tanh" else GELU)


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
    donated: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key turned, in their own memory if they are donated and apart.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    outs = results(query, key, donated, cos_sin_cache, positions)
    arguments = (positions, query, key, head_size, rotary_dim, cos_sin_cache, outs)
    for launch in rotation.plans(*arguments, neox=is_neox_style):
        loading.run(launch, query.device)
    return outs


def fused_qk_norm_rope(
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
    donated: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key, each head normalised and turned, in their own memory if they are donated and apart.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    outs = results(query, key, donated, cos_sin_cache, positions, query_weight, key_weight)
    norms = rotation.Norms(query_weight, key_weight, epsilon)
    arguments = (positions, query, key, head_size, rotary_dim, cos_sin_cache, outs)
    for launch in rotation.plans(*arguments, neox=is_neox_style, norms=norms):
        loading.run(launch, query.device)
    return outs


def results(first: Tensor, second: Tensor, donated: bool, *others: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return where two results go: to the donated tensors, or to new contiguous ones.

    Args:
        first: what may be written.
        second: what may be written, too.
        donated: whether they may.
        others: what is read beside them, by blocks that may come after those that write.
    """
    if donated and first.is_contiguous() and second.is_contiguous() and apart(first, second, *others):
        return first, second
    return first.new_empty(first.shape), second.new_empty(second.shape)


def dense(x: Tensor) -> bool:
    """Tell whether a tensor is contiguous, judged without its leading size; False where that would decide."""
    strides, sizes = x.stride(), x.shape
    return strides[-1] == 1 and all(strides[i] == strides[i + 1] * sizes[i + 1] for i in range(x.dim() - 1))


def apart(first: Tensor, second: Tensor, *others: Tensor | None) -> bool:
    """Tell whether two tensors share no memory, neither with each other nor with others; those may among themselves."""
    (begin, end), (start, stop) = span(first), span(second)
    if begin < stop and start < end:
        return False
    for other in others:
        if other is not None:
            low, high = span(other)
            if (begin < high and low < end) or (start < high and low < stop):
                return False
    return True


def span(x: Tensor) -> tuple[int, int]:
    """Return the addresses between which all elements of a tensor lie, the second behind the last of them."""
    begin, number = x.data_ptr(), x.element_size()
    if x.is_contiguous():
        return begin, begin + x.numel() * number
    if not x.numel():
        return begin, begin
    return begin, begin + (1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))) * number
