"""Rotary embedding: attention whose forward calls `apply_rotary_pos_emb` gets one that runs `rotary_embedding`.

Modelling files call that function by its global name, so a copy of the attention's forward in which this one name means
ours is all it takes. The table of cosines and sines that the op wants is built once per forward pass, not per layer.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import torch
from vllm_ir import Unsupported, ops

from vllm_ir_host_transformers import rewrite
from vllm_ir_host_transformers.edits import Edit

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

NAME: Final = "apply_rotary_pos_emb"
HEAD_SIZES: Final = ("head_dim", "head_size")
"""The attributes under which an attention keeps the size of a head."""

KEPT: Final = "_vllm_ir_table"
"""The attribute of the cosines that keeps the table built from them; it lives and dies with them."""


def recognise(module: nn.Module, embedding: nn.Module | None) -> Edit | Unsupported | None:
    """Return the edit of an attention, why it is left, or None for a module that rotates nothing.

    Args:
        module: what may be an attention.
        embedding: the module that makes its cosines and sines.
    """
    found = rewrite.unwrap(type(module).forward)
    if isinstance(found, Unsupported):
        return None
    inner = found[1]
    called = [name for name in inner.__code__.co_names if "rotary" in name and callable(inner.__globals__.get(name))]
    if not called:
        return None
    if called != [NAME]:
        return Unsupported(f"it rotates by {called[0]}, which is not the rotation of two halves")
    function = inner.__globals__[NAME]
    if not _rotates_halves(function):
        return Unsupported(f"its {NAME} does not give the bits of rotary_embedding")
    size = next((getattr(module, name) for name in HEAD_SIZES if isinstance(getattr(module, name, None), int)), None)
    floating = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    refusal = _halves_repeat(embedding, size, next(floating, torch.float32))
    return Edit(("rotary", function), {NAME: _rotation(function)}) if refusal is None else refusal


@lru_cache(maxsize=256)
def _rotates_halves(function: Callable[..., Any]) -> bool:
    """Tell whether a model's own rotation gives the bits of ours, in float32 and bfloat16, on random inputs."""
    rotate = _rotation(function, ops.rotary_embedding.declaration.native)
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        query = torch.randn(2, 5, 3, 8, generator=generator).to(dtype).transpose(1, 2)
        key = torch.randn(2, 5, 1, 8, generator=generator).to(dtype).transpose(1, 2)
        angle = torch.randn(2, 5, 4, generator=generator).repeat(1, 1, 2)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        try:
            with torch.no_grad():
                wanted = function(query, key, cos, sin)
        except Exception:  # noqa: BLE001 - a rotation with other parameters is another rotation
            return False
        got = rotate(query, key, cos, sin)
        if len(wanted) != len(got) or not all(map(torch.equal, wanted, got)):
            return False
    return True


def _halves_repeat(embedding: nn.Module | None, size: int | None, dtype: torch.dtype) -> Unsupported | None:
    """Return why the cosines of an embedding are not one half written twice over the whole head, or None."""
    if embedding is None:
        return Unsupported("no rotary_emb stands above it, so its cosines cannot be checked")
    if size is None:
        return Unsupported("it does not say how large a head is")
    try:
        tables = _ask(embedding, dtype)
        twice = all(torch.equal(*table.chunk(2, dim=-1)) for table in tables)
    except Exception as error:  # noqa: BLE001 - an embedding with other parameters is another embedding
        return Unsupported(f"{type(embedding).__name__} cannot be asked for cosines ({type(error).__name__})")
    for table in tables:
        if table.shape[-1] != size:
            return Unsupported(f"only {table.shape[-1]} of the {size} elements of a head are rotated")
        if table.dtype != dtype:
            return Unsupported(f"it is {str(dtype)[6:]} and its cosines are {str(table.dtype)[6:]}")
    return None if twice else Unsupported(f"{type(embedding).__name__} does not write its cosines twice")


def _ask(embedding: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    """Return the cosines and sines of three positions, for each kind of layer that an embedding serves."""
    probe = copy.deepcopy(embedding)  # Some embeddings adapt themselves to the positions they see.
    kinds: list[tuple[str, ...]] = [()]
    if "layer_type" in inspect.signature(probe.forward).parameters:
        served: Any = probe.layer_types
        kinds = [(kind,) for kind in served]
    device = next((buffer.device for buffer in probe.buffers()), torch.device("cpu"))
    x, positions = torch.zeros(1, 3, 8, dtype=dtype, device=device), torch.arange(3, device=device).unsqueeze(0)
    with torch.no_grad():
        return [table for kind in kinds for table in probe(x, positions, *kind)]


@lru_cache(maxsize=256)
def _rotation(function: Callable[..., Any], op: Callable[..., Any] = ops.rotary_embedding) -> Callable[..., Any]:
    """Return what stands in for a model's own rotation; calls that the op cannot take still go to the model's own."""

    def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return q and k, [batch, heads, tokens, head_size], turned by cos and sin, [batch or 1, tokens, head_size]."""
        if args or kwargs or not _fits(q, k, cos, sin):
            return function(q, k, cos, sin, *args, **kwargs)
        size = q.shape[-1]
        positions, table = _table(cos, sin, q.shape[0])
        # The heads lie innermost in memory, so this is the order of the op and no copy.
        query, key = op(positions, q.transpose(1, 2), k.transpose(1, 2), size, size, table, True)  # noqa: FBT003
        return query.transpose(1, 2), key.transpose(1, 2)

    return apply_rotary_pos_emb


def _fits(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Tell whether the op means the same for these tensors."""
    return (
        q.dim() == k.dim() == 4  # noqa: PLR2004 - batch, heads, tokens, head_size
        and cos.dim() == 3  # noqa: PLR2004 - batch, tokens, head_size
        and q.dtype == k.dtype == cos.dtype == sin.dtype
        and q.shape[-1] == k.shape[-1] == cos.shape[-1]
        and cos.shape[0] in (1, q.shape[0])
        and cos.shape[1] == q.shape[2]
        and sin.shape == cos.shape
    )


def _table(cos: Tensor, sin: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Return the positions, [batch, tokens], and the table, [rows, head_size], for one pair of cosines and sines."""
    if torch.compiler.is_compiling():
        return _build(cos, sin, batch)  # The compiler sees that all layers build the same.
    kept = getattr(cos, KEPT, None)
    stamp = (batch, _version(cos), _version(sin))
    if kept is not None and kept[0]() is sin and kept[1] == stamp:
        positions, table = kept[2]
        return positions, table
    built = _build(cos, sin, batch)
    # A table with a graph behind it belongs to one backward pass.
    if not built[1].requires_grad:
        setattr(cos, KEPT, (weakref.ref(sin), stamp, built))
    return built


def _version(tensor: Tensor) -> int:
    """Return a number that grows with every change in place; inference tensors have none."""
    return -1 if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch's own way to see a change


def _build(cos: Tensor, sin: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Return the positions and the table: a row of cosines then sines for every token."""
    rows, tokens, size = cos.shape
    half = size // 2
    table = torch.cat((cos[..., :half], sin[..., :half]), dim=-1).reshape(rows * tokens, size)
    positions = torch.arange(rows * tokens, device=cos.device).view(rows, tokens)
    return positions.expand(batch, tokens), table
