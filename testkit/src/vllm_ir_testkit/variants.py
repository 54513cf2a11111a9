"""What one op can be asked beside its generator's plain answer: options, fewer heads, a part of a row.

The core's ops have theirs here; an op of anybody else has one for each flag that its generator takes.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm_ir import IrOp

Arguments = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to ask.

    Attributes:
        name: how a report calls it; empty for the plain way.
        keywords: what the generator is given beside tokens, hidden size and dtype.
        rewrite: what is then done to the arguments.
        hidden: a hidden size that it needs in place of the generator's own.
    """

    name: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict, hash=False)
    rewrite: Callable[[Arguments], Arguments] | None = None
    hidden: int | None = None

    def apply(self, args: Arguments) -> Arguments:
        """Return the arguments after the rewriting."""
        return args if self.rewrite is None else self.rewrite(args)


PLAIN: Final = Variant()


def half_of_the_row(args: Arguments) -> Arguments:
    """Return a norm's arguments with a variance of half the row."""
    return (*args, max(1, args[0].shape[-1] // 2))


def half_of_the_head(args: Arguments) -> Arguments:
    """Return rotary arguments that turn half of each head."""
    positions, query, key, head_size, rotary_dim, cache, neox = args
    half = rotary_dim // 2
    cosines, sines = cache[:, : half // 2], cache[:, rotary_dim // 2 : rotary_dim // 2 + half // 2]
    return positions, query, key, head_size, half, torch.cat((cosines, sines), dim=-1), neox


def one_key_head(args: Arguments) -> Arguments:
    """Return rotary arguments with a single key head, as in multi-query attention."""
    positions, query, key, head_size, *rest = args
    return (positions, query, key[..., :head_size].contiguous(), head_size, *rest)


def heads_apart(args: Arguments) -> Arguments:
    """Return rotary arguments with heads in a dimension of their own."""
    positions, query, key, head_size, *rest = args
    query, key = (x.reshape(*x.shape[:-1], -1, head_size) for x in (query, key))
    return (positions, query, key, head_size, *rest)


_STRETCH: Final = 1.75
"""A scale whose inverse is no float32: over it these values are ties, times its rounded inverse some are none."""


def quotients(x: torch.Tensor, dtype: torch.dtype, size: int) -> torch.Tensor:
    """Return a tensor of x's shape whose quotients by a scale are small whole numbers, odd ones midway between floats.

    Args:
        x: whose signs and dtype are taken.
        dtype: of 8 bits; the first element of each run holds its limit times the scale, so that the scale is known.
        size: how many elements share a scale.
    """
    from vllm_ir.ops.quantization import FP8_MAX

    steps = torch.randint(0, 32, x.shape, device=x.device) * torch.where(x < 0, -1.0, 1.0)
    values = (steps * _STRETCH).to(x.dtype)
    values[..., ::size] = FP8_MAX[dtype] * _STRETCH
    return values


def ties_of_a_given_scale(args: Arguments) -> Arguments:
    """Return arguments of a static quantisation whose products are ties, or lie beside them by a rounded inverse."""
    x, scale, dtype = args
    return quotients(x, dtype, x.shape[-1]), torch.full_like(scale, _STRETCH), dtype


def ties_of_a_row(args: Arguments) -> Arguments:
    """Return the like for a scale that is found for each row, or for the tensor."""
    x, per_token, scale_ub, dtype = args
    return quotients(x, dtype, x.shape[-1]), per_token, scale_ub, dtype


def ties_of_a_group(args: Arguments) -> Arguments:
    """Return the like for a scale that is found for each group."""
    x, group_size, column_major, ue8m0, dtype = args
    return quotients(x, dtype, group_size), group_size, column_major, ue8m0, dtype


def loud_first_row(args: Arguments) -> Arguments:
    """Return arguments whose first row is a thousand times as loud, so that one scale for all shows."""
    x, *rest = args
    if x.dim() > 1:
        x = x.clone()
        x[:1] *= 1000
    return (x, *rest)


def _eight_bits() -> tuple[Variant, ...]:
    """Return a variant for each 8-bit dtype that is not the default."""
    return tuple(
        Variant(str(dtype).removeprefix("torch."), {"quant_dtype": dtype})
        for dtype in (torch.float8_e4m3fnuz, torch.float8_e5m2)
    )


VARIANTS: Final[dict[str, tuple[Variant, ...]]] = {
    "rms_norm": (Variant("variance of half the row", rewrite=half_of_the_row),),
    "fused_add_rms_norm": (Variant("variance of half the row", rewrite=half_of_the_row),),
    "gelu_and_mul": (Variant("tanh", {"approximate": "tanh"}),),
    "rotary_embedding": (
        Variant("half of the head", rewrite=half_of_the_head),
        Variant("one key head", rewrite=one_key_head),
        Variant("heads apart", rewrite=heads_apart),
        Variant("head of 128", {"head_size": 128}, hidden=512),
    ),
    "static_quant_fp8": (*_eight_bits(), Variant("ties", rewrite=ties_of_a_given_scale)),
    "dynamic_quant_fp8": (
        *_eight_bits(),
        Variant("ties", rewrite=ties_of_a_row),
        Variant("a loud first row", rewrite=loud_first_row),
        Variant("a loud first row, one scale", {"per_token": False}, rewrite=loud_first_row),
    ),
    "dynamic_group_quant_fp8": (
        *_eight_bits(),
        Variant("ties", rewrite=ties_of_a_group),
        Variant("groups of 16", {"group_size": 16}),
        Variant("groups of 128", {"group_size": 128}, hidden=512),
        Variant("groups of 16, column-major", {"group_size": 16, "column_major_scales": True}),
    ),
    **{
        f"{name}_quant_fp8": _eight_bits()
        for name in (
            "rms_norm_static",
            "fused_add_rms_norm_static",
            "rms_norm_dynamic",
            "fused_add_rms_norm_dynamic",
            "silu_and_mul_static",
            "silu_and_mul_dynamic",
        )
    },
    "silu_and_mul_group_quant_fp8": (*_eight_bits(), Variant("groups of 16", {"group_size": 16})),
    "fused_qk_norm_rope": (Variant("head of 128", {"head_size": 128}, hidden=512),),
}
"""Variants of the core's ops, the plain one left out."""


def variants_of(op: IrOp) -> tuple[Variant, ...]:
    """Return the ways to ask an op, the plain one first."""
    generator = op.save()[2].generator
    flags = []
    for name, parameter in inspect.signature(generator).parameters.items() if generator else ():
        if isinstance(parameter.default, bool):
            flags.append(Variant(f"{name}={not parameter.default}", {name: not parameter.default}))
    return (PLAIN, *flags, *VARIANTS.get(op.name, ()))
