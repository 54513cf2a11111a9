"""What one op can be asked beside its generator's plain answer: options, fewer heads, a part of a row.

The core's ops have theirs here; an op of anybody else has one for each flag that its generator takes.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

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
    import torch

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
