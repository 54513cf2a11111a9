"""Fake tensors made by hand, in a tenth of the time that an operation on fake tensors takes.

Like `torch_version`, written against what torch 2.11 to 2.14 have in common.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def twin(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a fake tensor of the same kind in memory of its own; None where only its operation can make one.

    Args:
        tensor: a fake one.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if type(tensor) is not FakeTensor or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return None
    offset = tensor.storage_offset()
    if not isinstance(offset, int) or offset:
        return None
    mode = tensor.fake_mode
    quiet = mode.shape_env.suppress_guards() if mode.shape_env is not None else contextlib.nullcontext()
    # Not for the mode that may be in force while a graph is compiled: it would make a fake tensor of it.
    with quiet, torch._C._DisableTorchDispatch():
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(mode, empty, tensor.device)
