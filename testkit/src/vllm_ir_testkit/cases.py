"""One call of an op as a frozen recipe: what its generator is asked, and what is done to the answer.

A recipe is small, prints as one line and makes the same tensors every time; which recipes a check takes is `curated`'s
and, drawn by Hypothesis, `strategies`'.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vllm_ir_testkit import batch
from vllm_ir_testkit.errors import UnknownPart
from vllm_ir_testkit.fills import FILLS, ties
from vllm_ir_testkit.layouts import LAYOUTS
from vllm_ir_testkit.variants import PLAIN, Variant

if TYPE_CHECKING:
    from torch import Tensor
    from vllm_ir import IrOp

DTYPES = ("float32", "bfloat16", "float16")
"""What every op is asked with, by torch's names."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call.

    Attributes:
        tokens: what the generator is given as `num_tokens`.
        dtype: torch's name of the dtype it is given.
        hidden: what it is given as `hidden_size`; its own default when None.
        lead: leading sizes in place of [tokens], with the same product; () for one token without a leading size.
        layout: how activations lie in memory, a key of `layouts.LAYOUTS`.
        fill: what activations hold, a key of `fills.FILLS`.
        parameters: dtype of tensors that do not grow with the tokens, such as weights; "ties" for float32 midway
            between neighbours of the activations' dtype; "none" leaves optional ones out; "stepped" gives them a
            stride; empty for what the generator made.
        variant: an option of the op.
        seed: of torch's generator.

    Raises:
        UnknownPart: there is no such layout or fill, or the leading sizes are not of as many tokens.
    """

    tokens: int = 5
    dtype: str = "float32"
    hidden: int | None = None
    lead: tuple[int, ...] | None = None
    layout: str = "contiguous"
    fill: str = "normal"
    parameters: str = ""
    variant: Variant = PLAIN
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every part that is a name."""
        for kind, name, known in (("layout", self.layout, LAYOUTS), ("fill", self.fill, FILLS)):
            if name not in known:
                raise UnknownPart(kind=kind, name=name, known=tuple(known))
        product = 1
        for size in self.lead or ():
            product *= size
        if self.lead is not None and product != self.tokens:
            raise UnknownPart(kind="leading size", name=str(self.lead), known=(f"a product of {self.tokens}",))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def plain(self) -> bool:
        """Whether activations are contiguous and finite, and everything else is the generator's own."""
        return self.layout == "contiguous" and self.fill == "normal" and self.variant is PLAIN and not self.parameters

    def __str__(self) -> str:
        """Return one line that names every part that is not plain."""
        shape = "x".join(map(str, self.lead if self.lead is not None else (self.tokens,))) or "row"
        hidden = "" if self.hidden is None else f"x{self.hidden}"
        extra = [
            self.layout if self.layout != "contiguous" else "",
            self.fill if self.fill != "normal" else "",
            f"parameters {self.parameters}" if self.parameters else "",
            self.variant.name,
            f"seed {self.seed}" if self.seed else "",
        ]
        return ", ".join([f"{self.dtype} {shape}{hidden}", *filter(None, extra)])

    def build(self, op: IrOp, device: torch.device | str = "cpu") -> tuple[Any, ...]:
        """Return the arguments of the call, by position; the same tensors every time.

        Raises:
            IrError, TypeError, ValueError, RuntimeError: the op's generator does not take such sizes.
        """
        keywords = self.keywords(op)
        with torch.random.fork_rng(devices=[device] if torch.device(device).type == "cuda" else []):
            torch.manual_seed(self.seed)
            args = op.generate_inputs(num_tokens=self.tokens, dtype=self.torch_dtype, device=device, **keywords)
            growing = {each.argument for each in batch.of_inputs(op, keywords)}
            args = tuple(self._activation(x) if i in growing else self._parameter(x, op, i) for i, x in enumerate(args))
            args = self.variant.apply(args)
            return tuple(self._lay(x) if i in growing else x for i, x in enumerate(args))

    def keywords(self, op: IrOp) -> dict[str, Any]:
        """Return what the op's generator is given beside tokens, dtype and device."""
        hidden = self.variant.hidden if self.hidden is None else self.hidden
        sizes = {} if hidden is None else {"hidden_size": hidden}
        generator = op.save()[2].generator
        known = inspect.signature(generator).parameters if generator is not None else {}
        return {**{name: size for name, size in sizes.items() if name in known}, **self.variant.keywords}

    def _activation(self, x: Tensor) -> Tensor:
        """Return a tensor that grows with the tokens, filled and in its leading sizes."""
        if x.is_floating_point():
            x = FILLS[self.fill](x)
        if self.lead is None or (not self.lead and x.dim() < 2):  # noqa: PLR2004 - positions keep their one element
            return x
        return x.reshape(*self.lead, *x.shape[1:])

    def _lay(self, x: Any) -> Any:
        """Return an activation as it lies in memory."""
        return LAYOUTS[self.layout](x) if isinstance(x, torch.Tensor) else x

    def _parameter(self, x: Any, op: IrOp, position: int) -> Any:
        """Return what does not grow with the tokens."""
        if not isinstance(x, torch.Tensor) or not self.parameters:
            return x
        if self.parameters == "none":
            return None if op.declaration.types.kinds[position] == "optional tensor" else x
        if self.parameters == "stepped":
            return LAYOUTS["stepped"](x)
        if not x.is_floating_point():
            return x
        if self.parameters == "ties":
            return ties(x.float(), self.torch_dtype)
        return x.to(getattr(torch, self.parameters))
