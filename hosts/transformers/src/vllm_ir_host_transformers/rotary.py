"""Rotary embedding: attention whose forward calls a rotation gets one that runs `rotary_embedding`.

Modelling files call that function by its global name, so a copy of the attention's forward in which this one name means
ours is all it takes. Which functions are one, and how they are said in the op, is known in `rotations`.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import torch
from vllm_ir import Unsupported

from vllm_ir_host_transformers import rewrite, rotations
from vllm_ir_host_transformers.edits import Edit

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vllm_ir_host_transformers.rotations import Form


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
    named = [name for name in inner.__code__.co_names if "rotary" in name]
    functions = {name: inner.__globals__[name] for name in named if callable(inner.__globals__.get(name))}
    if not functions:
        return None
    forms = {name: rotations.form_of(function) for name, function in functions.items()}
    floating = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    dtype = next(floating, torch.float32)
    names = {}
    for name, form in forms.items():
        if form is None:
            return Unsupported(f"its {name} does not give the bits of rotary_embedding")
        refusal = _other_cosines(embedding, form, dtype)
        if refusal is not None:
            return refusal
        names[name] = rotations.stand_in(functions[name], form)
    return Edit(("rotary", *functions.values()), names)


def _other_cosines(embedding: nn.Module | None, form: Form, dtype: torch.dtype) -> Unsupported | None:
    """Return why the cosines of an embedding are not what a form wants, or None."""
    if embedding is None:
        return Unsupported("no rotary_emb stands above it, so its cosines cannot be checked")
    try:
        tables = _ask(embedding, dtype)
        repeat = all(form.repeats(table) for table in tables)
    except Exception as error:  # noqa: BLE001 - an embedding with other parameters is another embedding
        return Unsupported(f"{type(embedding).__name__} cannot be asked for cosines ({type(error).__name__})")
    odd = next((table.dtype for table in tables if not form.takes(dtype, table.dtype)), None)
    if odd is not None:
        return Unsupported(f"it is {str(dtype)[6:]} and its cosines are {str(odd)[6:]}")
    how = "twice in a row" if form.cosines == "pairs" else "twice"
    return None if repeat else Unsupported(f"{type(embedding).__name__} does not write its cosines {how}")


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
