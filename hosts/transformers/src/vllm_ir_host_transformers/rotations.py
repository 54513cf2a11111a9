"""Rotations as models write them, each said in `rotary_embedding`: which pairs turn, how cosines lie, what is rounded.

A function is not believed for its name: it is run on random inputs beside the op's native function, and only the same
bits make it one of the forms. The table of cosines and sines that the op wants is built once per forward pass, not per
layer.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

KEPT: Final = "_vllm_ir_table"
"""The attribute of the cosines that keeps the table built from them; it lives and dies with them."""

MORE: Final = 4
"""How much wider than its cosines a head is where a function is asked what it does with the rest."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a model's own rotation is said in the op.

    Attributes:
        cosines: "halves" where one half of the cosines repeats the other, "pairs" where each stands twice in a row, and
            "once" where each stands once.
        neox: pairs are an element and the one half a head behind it; otherwise neighbours.
        gathers: neighbours turn, and come out half a head apart, as in DeepSeek V3.
        wide: computed in float32 and rounded once.
        partial: what the cosines do not cover is handed through; otherwise they cover what the function is given.
    """

    cosines: Literal["halves", "pairs", "once"]
    neox: bool = True
    gathers: bool = False
    wide: bool = False
    partial: bool = False

    def size(self, cos: Tensor) -> int:
        """Return how many elements of a head such cosines turn."""
        return cos.shape[-1] * (2 if self.cosines == "once" else 1)

    def repeats(self, table: Tensor) -> bool:
        """Tell whether cosines, or sines, [..., n], lie as this form has them."""
        if self.cosines == "pairs":
            return torch.equal(table[..., ::2], table[..., 1::2])
        return self.cosines == "once" or torch.equal(*table.chunk(2, dim=-1))

    def takes(self, dtype: torch.dtype, cosines: torch.dtype) -> bool:
        """Tell whether the op means the same for a head and cosines of these dtypes."""
        return cosines == dtype or (self.wide and cosines == torch.float32)

    def fits(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
        """Tell whether the op means the same for these tensors."""
        size = self.size(cos)
        return (
            q.dim() == k.dim() == 4  # noqa: PLR2004 - batch, heads, tokens, head_size
            and cos.dim() == 3  # noqa: PLR2004 - batch, tokens, cosines
            and q.dtype == k.dtype
            and cos.dtype == sin.dtype
            and self.takes(q.dtype, cos.dtype)
            and q.shape[-1] == k.shape[-1]
            and (size <= q.shape[-1] if self.partial else size == q.shape[-1])
            and cos.shape[0] in (1, q.shape[0])
            and cos.shape[1] == q.shape[2]
            and sin.shape == cos.shape
        )

    def turn(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, op: Callable[..., Any]) -> tuple[Tensor, Tensor]:
        """Return q and k, [batch, heads, tokens, head_size], turned by cos and sin, [batch or 1, tokens, n]."""
        positions, table = _table(self, cos, sin, q.shape[0])
        dtype = q.dtype
        # The heads lie innermost in memory, so this is the order of the op and no copy.
        query, key = q.transpose(1, 2), k.transpose(1, 2)
        if self.gathers:
            query, key = (torch.cat((each[..., ::2], each[..., 1::2]), dim=-1) for each in (query, key))
        if self.wide:
            query, key, table = query.float(), key.float(), table.float()
        query, key = op(positions, query, key, q.shape[-1], self.size(cos), table, self.neox)
        return query.to(dtype).transpose(1, 2), key.to(dtype).transpose(1, 2)


_WHOLE: Final = (
    Form("halves"),
    Form("halves", neox=False),
    Form("halves", gathers=True),
    Form("halves", neox=False, wide=True),
    Form("pairs", neox=False),
    Form("pairs", neox=False, wide=True),
    Form("once"),
)
FORMS: Final = tuple(
    Form(form.cosines, form.neox, form.gathers, form.wide, partial)
    for form in _WHOLE
    for partial in (True, False)
    # What gathers moves every element of a head, so none is handed through.
    if not (partial and form.gathers)
)
"""In the order in which they are tried: a function that hands a rest through does without one what another does."""


@lru_cache(maxsize=256)
def form_of(function: Callable[..., Any]) -> Form | None:
    """Return the form whose bits a model's own rotation gives, in float32 and bfloat16, on random inputs."""
    return next((form for form in FORMS if _gives(function, form)), None)


def _gives(function: Callable[..., Any], form: Form) -> bool:
    """Tell whether a rotation gives the bits of a form."""
    native = ops.rotary_embedding.declaration.native
    generator = torch.Generator().manual_seed(0)
    half = (torch.bfloat16, torch.bfloat16)
    kinds = [(torch.float32, torch.float32), half, *([(torch.bfloat16, torch.float32)] if form.wide else [])]
    for dtype, cosines in kinds:
        for more in (0, MORE) if form.partial else (0,):
            query = torch.randn(2, 5, 3, 8 + more, generator=generator).to(dtype).transpose(1, 2)
            key = torch.randn(2, 5, 1, 8 + more, generator=generator).to(dtype).transpose(1, 2)
            angle = _laid_out(torch.randn(2, 5, 4, generator=generator), form)
            cos, sin = angle.cos().to(cosines), angle.sin().to(cosines)
            try:
                with torch.no_grad():
                    wanted = function(query, key, cos, sin)
            except Exception:  # noqa: BLE001 - a rotation with other parameters, or of other sizes, is another one
                return False
            got = form.turn(query, key, cos, sin, native)
            if len(wanted) != len(got) or not all(map(_same, wanted, got)):
                return False
    return True


def _same(one: object, other: Tensor) -> bool:
    """Tell whether a result is a tensor of the same bits and dtype."""
    return isinstance(one, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)


def _laid_out(angle: Tensor, form: Form) -> Tensor:
    """Return angles, [..., n], as a form has its cosines."""
    if form.cosines == "pairs":
        return angle.repeat_interleave(2, dim=-1)
    return angle if form.cosines == "once" else angle.repeat(1, 1, 2)


@lru_cache(maxsize=256)
def stand_in(function: Callable[..., Any], form: Form) -> Callable[..., Any]:
    """Return what stands in for a model's own rotation; calls that the op cannot take still go to the model's own."""

    def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return q and k, [batch, heads, tokens, head_size], turned by cos and sin, [batch or 1, tokens, n]."""
        if args or kwargs or not form.fits(q, k, cos, sin):
            return function(q, k, cos, sin, *args, **kwargs)
        return form.turn(q, k, cos, sin, ops.rotary_embedding)

    return apply_rotary_pos_emb


def _table(form: Form, cos: Tensor, sin: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Return the positions, [batch, tokens], and the table, [rows, size], for one pair of cosines and sines."""
    if torch.compiler.is_compiling():
        return _build(form, cos, sin, batch)  # The compiler sees that all layers build the same.
    kept = getattr(cos, KEPT, None)
    stamp = (form.cosines, batch, _version(cos), _version(sin))
    if kept is not None and kept[0]() is sin and kept[1] == stamp:
        positions, table = kept[2]
        return positions, table
    built = _build(form, cos, sin, batch)
    # A table with a graph behind it belongs to one backward pass.
    if not built[1].requires_grad:
        setattr(cos, KEPT, (weakref.ref(sin), stamp, built))
    return built


def _version(tensor: Tensor) -> int:
    """Return a number that grows with every change in place; inference tensors have none."""
    return -1 if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch's own way to see a change


def _build(form: Form, cos: Tensor, sin: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Return the positions and the table: a row of cosines then sines for every token."""
    rows, tokens, width = cos.shape
    if form.cosines == "pairs":
        cos, sin = cos[..., ::2], sin[..., ::2]
    elif form.cosines == "halves":
        cos, sin = cos[..., : width // 2], sin[..., : width // 2]
    table = torch.cat((cos, sin), dim=-1).reshape(rows * tokens, -1)
    positions = torch.arange(rows * tokens, device=cos.device).view(rows, tokens)
    return positions.expand(batch, tokens), table
