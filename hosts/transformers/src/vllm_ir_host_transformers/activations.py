"""Gated activations: `act(gate) * up` wherever a forward says so, put on `silu_and_mul` or `gelu_and_mul`.

The projections are called as they are, with their hooks, adapters and quantisation; only what is done with their
results changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from vllm_ir import Unsupported, ops

from vllm_ir_host_transformers import products
from vllm_ir_host_transformers.edits import Edit, reading_of
from vllm_ir_host_transformers.instance import hooked

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

ATTRIBUTES: Final = ("act_fn", "activation_fn", "act", "activation")
"""The attributes under which modules keep their activation."""


@dataclass(frozen=True, slots=True)
class Gate:
    """An activation that an op multiplies with.

    Attributes:
        op: the op's name.
        arguments: what the op takes after its tensor.
    """

    op: str
    arguments: tuple[str, ...] = ()


GATES: Final = (Gate("silu_and_mul"), Gate("gelu_and_mul"), Gate("gelu_and_mul", ("tanh",)))


def recognise(module: nn.Module) -> tuple[Gate, Edit] | Unsupported | None:
    """Return the gate and the edit of a gated module, why it is left, or None when it has no activation."""
    attribute = next((name for name in ATTRIBUTES if callable(getattr(module, name, None))), None)
    if attribute is None or next(module.parameters(), None) is None:
        return None
    if next(module.parameters(recurse=False), None) is not None:
        # Experts hold one weight for all of them, and Transformers swaps the code that multiplies with it.
        return Unsupported("it holds bare weights, so its forward may not be what multiplies with them")
    gate = _gate_of(getattr(module, attribute))
    reading = reading_of(type(module).forward)
    if isinstance(reading, Unsupported):
        return reading
    if next(products.products(reading.tree, attribute), None) is None:
        return Unsupported(f"its forward has no {attribute}(gate) * up")
    if gate is None:
        return Unsupported(f"{type(getattr(module, attribute)).__name__} is neither SiLU nor GELU, bit for bit")
    return gate, _edit(attribute, gate)


def note(module: nn.Module, gate: Gate) -> str:
    """Return what is worth knowing of the last bit of a gated module's result; mostly nothing.

    A vectorised kernel takes the end of a row by another exp or tanh than the middle. Apart, all of gate is one row;
    packed, each token is a row of its own, so where the width is no multiple of the vector its end may differ.
    """
    width = getattr(module, "intermediate_size", None)
    weight = next(module.parameters())
    if not isinstance(width, int) or weight.device.type != "cpu" or not weight.is_floating_point():
        return ""
    return "" if _same_bits(gate, width, weight.dtype) else f"rows of {width}: a last bit may differ"


@lru_cache(maxsize=256)
def _same_bits(gate: Gate, width: int, dtype: torch.dtype) -> bool:
    """Tell whether the op's native function gives the bits of the separate activation for rows of this width."""
    generator = torch.Generator().manual_seed(width)
    one, other = torch.randn(2, 3, width, generator=generator).to(dtype)
    native = getattr(ops, gate.op).declaration.native
    return torch.equal(_reference(gate)(one) * other, native(torch.cat((one, other), dim=-1), *gate.arguments))


def _gate_of(activation: Any) -> Gate | None:
    """Return the gate whose activation gives the same bits on random inputs."""
    for gate in GATES:
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
            try:
                with torch.no_grad():
                    # Past its hooks: a probe is no call.
                    got = activation.forward(x.clone()) if isinstance(activation, nn.Module) else activation(x.clone())
            except Exception:  # noqa: BLE001 - whatever fails on one tensor is no plain activation
                return None
            if not isinstance(got, torch.Tensor) or not torch.equal(got, _reference(gate)(x)):
                break
        else:
            return gate
    return None


def _reference(gate: Gate) -> Callable[[Tensor], Tensor]:
    """Return the activation of a gate alone."""
    if gate.op == "silu_and_mul":
        return nn.functional.silu
    return lambda x: nn.functional.gelu(x, approximate=gate.arguments[0] if gate.arguments else "none")


@cache
def _edit(attribute: str, gate: Gate) -> Edit:
    """Return the edit that lets a forward call the op for its gated activation."""
    op = getattr(ops, gate.op)
    arguments = gate.arguments

    def fits(activation: Any, first: Tensor, second: Tensor) -> bool:
        """Tell whether the op means the same for these operands."""
        return (
            first.dtype == second.dtype
            and first.shape == second.shape
            and not (isinstance(activation, nn.Module) and hooked(activation))
        )

    def gated(activation: Any, first: Tensor, second: Tensor) -> Tensor:
        """Return activation(first) * second; both [..., intermediate_size]."""
        if fits(activation, first, second):
            result: Tensor = op(torch.cat((first, second), dim=-1), *arguments)
            return result
        product: Tensor = activation(first) * second
        return product

    def gated_last(activation: Any, second: Tensor, first: Tensor) -> Tensor:
        """Return second * activation(first), for a forward that computes `second` first."""
        return gated(activation, first, second)

    def gated_packed(activation: Any, packed: Tensor) -> Tensor:
        """Return activation(gate) * up of a packed [..., 2 * intermediate_size]."""
        first, second = packed.chunk(2, dim=-1)
        if fits(activation, first, second):
            result: Tensor = op(packed, *arguments)
            return result
        product: Tensor = second * activation(first)
        return product

    names = {"_ir_gated": gated, "_ir_gated_last": gated_last, "_ir_gated_packed": gated_packed}
    return Edit(("activation", attribute, gate), names, lambda tree: products.rewrite(tree, attribute))
