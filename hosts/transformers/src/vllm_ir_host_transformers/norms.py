"""RMS norms: which modules are one, in which of four flavours, and the forward that runs `rms_norm` for each.

A module is not believed for its name: its own forward is run on small random inputs beside the op's native function,
in several dtypes and with a random weight, and only the same bits make it a norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import torch
from vllm_ir import Unsupported, ops

from vllm_ir_host_transformers import instance

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

EPSILONS: Final = ("variance_epsilon", "eps", "epsilon")
"""The attributes under which modules keep their epsilon."""

PROBES: Final = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
)
"""The dtypes of input and weight that a candidate is run with."""

MEAN: Final = Unsupported("it subtracts the mean, so it is no RMS norm")

ANY_SHAPE: Final = (64,)
"""Of a row that a norm is run with which has no weight and does not say how wide its rows are."""


def _plain(weight: Tensor) -> Tensor:
    """Return the weight: the normalised value is rounded before the multiply, as in Llama."""
    return weight


def _wide(weight: Tensor) -> Tensor:
    """Return the weight in float32 at least: nothing is rounded before the multiply, as in OLMo 2."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32))


def _one_plus(weight: Tensor) -> Tensor:
    """Return one plus the weight in float32, as in Gemma."""
    return 1.0 + weight.float()


@dataclass(frozen=True, slots=True)
class Flavour:
    """How one family's RMS norm is said in `rms_norm`.

    Attributes:
        scale: what becomes of the module's weight before the op gets it; None for a norm without one, such as that of
            the values in Gemma 4.
        epsilon: the attribute that holds the epsilon.
    """

    scale: Callable[[Tensor], Tensor] | None
    epsilon: str

    def takes(self, dtype: torch.dtype, weight: Tensor | None) -> bool:
        """Tell whether one call of the op with the weight means the same for such an input."""
        # A plain weight of another dtype promotes the product, which the op, whose result has x's dtype, does not.
        return weight is None or self.scale is not _plain or dtype == weight.dtype

    def scaled(self, weight: Tensor | None) -> Tensor | None:
        """Return what the op gets for the module's weight."""
        return None if weight is None or self.scale is None else self.scale(weight)

    def apply(self, x: Tensor, weight: Tensor | None, epsilon: float, op: Callable[..., Tensor]) -> Tensor:
        """Return the norm of x, [..., hidden_size]."""
        if weight is None or self.takes(x.dtype, weight):
            return op(x, self.scaled(weight), epsilon)
        return weight * op(x, None, epsilon)


FLAVOURS: Final = tuple(Flavour(scale, name) for name in EPSILONS for scale in (_plain, _wide, _one_plus, None))


def weight_of(module: nn.Module) -> Tensor | None:
    """Return the weight of a norm, if it has one."""
    weight: Tensor | None = getattr(module, "weight", None)
    return weight


def recognise(module: nn.Module) -> Flavour | Unsupported | None:
    """Return the flavour of an RMS norm, why a norm is none, or None for a module that is no norm at all."""
    if "Norm" not in type(module).__name__:
        return None
    found: Flavour | Unsupported | None = _shape(module)
    found = instance.occupied(module) if found is None else found
    found = _flavour(module) if found is None else found
    return MEAN if isinstance(found, Unsupported) and _subtracts_mean(module) else found


def _flavour(module: nn.Module) -> Flavour | Unsupported:
    """Return the flavour whose bits a norm gives, or by how much it misses them all."""
    name = next(name for name in EPSILONS if isinstance(getattr(module, name, None), float))
    differences: list[float] = []
    for flavour in FLAVOURS:
        if flavour.epsilon == name and (flavour.scale is None) == (weight_of(module) is None):
            verdict = _compare(module, flavour)
            if verdict is True:
                return flavour
            if isinstance(verdict, Unsupported):
                return verdict
            differences.append(verdict)
    if min(differences) == math.inf:
        return Unsupported("its result has another shape or dtype than that of rms_norm")
    return Unsupported(f"its result is not that of rms_norm: off by {min(differences):.2g} on a random input")


def _shape(module: nn.Module) -> Unsupported | None:
    """Return why a norm cannot be an RMS norm by what it holds."""
    names = [name for name, _ in module.named_parameters()]
    if names not in (["weight"], []) or any(True for _ in module.buffers()) or any(True for _ in module.children()):
        return Unsupported("it holds more than one weight")
    weight = weight_of(module)
    if weight is not None and weight.dim() != 1:
        return Unsupported("its weight is not one row")
    if not any(isinstance(getattr(module, name, None), float) for name in EPSILONS):
        return Unsupported("it keeps no epsilon under a known name")
    return None


def _size(module: nn.Module) -> int:
    """Return how wide the rows of a norm are, or may be."""
    weight = weight_of(module)
    shape: tuple[int, ...] = getattr(module, "normalized_shape", ANY_SHAPE) if weight is None else tuple(weight.shape)
    return shape[-1]


def _subtracts_mean(module: nn.Module) -> bool:
    """Tell whether a norm gives the same for a row and for the row with something added to all of it."""
    if any(True for _ in module.buffers()):
        return False  # Running it might change what it counts there.
    size = _size(module)
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(3, size, generator=generator)
    weight = None if weight_of(module) is None else torch.ones(size)
    try:
        with torch.no_grad():
            one, other = (type(module).forward(_with_weight(module, weight), each) for each in (x, x + 1))
            return torch.allclose(one, other, atol=1e-4)
    except Exception:  # noqa: BLE001 - any failure means that this is no norm of one tensor
        return False


def _compare(module: nn.Module, flavour: Flavour) -> bool | float | Unsupported:
    """Return True when a module computes what the flavour says, bit for bit, else by how much it differs."""
    native = ops.rms_norm.declaration.native
    own, size = weight_of(module), _size(module)
    generator = torch.Generator().manual_seed(size)
    worst = 0.0
    for x_dtype, weight_dtype in PROBES:
        x = torch.randn(2, 3, size, generator=generator).to(x_dtype)
        weight = None if own is None else torch.randn(size, generator=generator).to(weight_dtype)
        epsilon = getattr(module, flavour.epsilon)
        try:
            with torch.no_grad():
                got = type(module).forward(_with_weight(module, weight), x)
        except Exception as error:  # noqa: BLE001 - any failure means that this is no norm of one tensor
            return Unsupported(f"its forward does not take one tensor ({type(error).__name__})")
        wanted = flavour.apply(x, weight, epsilon, native)
        if not isinstance(got, torch.Tensor) or got.shape != wanted.shape or got.dtype != wanted.dtype:
            return math.inf
        if not torch.equal(got, wanted):
            worst = max(worst, float((got.double() - wanted.double()).abs().max()))
    return worst == 0.0 or worst


def _with_weight(module: nn.Module, weight: Tensor | None) -> nn.Module:
    """Return a stand-in for a module that holds another weight; the module is not touched."""
    stand_in = object.__new__(type(module))
    stand_in.__dict__.update(module.__dict__)
    if weight is not None:
        stand_in.__dict__.update(_parameters={**module._parameters, "weight": weight})  # noqa: SLF001 - no public way
    return stand_in


@cache
def forward_of(flavour: Flavour) -> Callable[..., Tensor]:
    """Return the forward of a flavour: one function, so that all modules of a flavour share its compiled code."""
    name, apply = flavour.epsilon, flavour.apply

    def forward(self: nn.Module, hidden_states: Tensor) -> Tensor:
        """Return the RMS norm of hidden_states, [..., hidden_size]."""
        if hidden_states.dtype == torch.float64:
            # The op keeps float64 where every family goes down to float32.
            own: Tensor = type(self).forward(self, hidden_states)
            return own
        return apply(hidden_states, weight_of(self), getattr(self, name), ops.rms_norm)

    return forward
