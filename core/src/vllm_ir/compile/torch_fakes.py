"""Fake tensors made by hand, in a tenth of the time that an operation on fake tensors takes.

Like `torch_version`, written against what torch 2.11 to 2.14 have in common.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Keep torch from logging, with a traceback, what an op says to fake tensors where that is an answer like others.

    It logs every TypeError, which is also what a wrong argument of an op is; of other threads all is logged as before.
    """
    mine = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        """Let through what other threads log."""
        return record.thread != mine

    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addFilter(others)
    try:
        yield
    finally:
        log.removeFilter(others)


def fake_mode() -> Any:
    """Return a mode of its own in which tensors are fake."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


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


def view_twin(tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor | None:
    """Return a fake tensor of the same kind in the memory of another; None where only its operation can make one.

    Args:
        tensor: a fake one, a view of something that lies in its memory as `base` does in its own.
        base: a fake one.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

    if type(tensor) is not FakeTensor or type(base) is not FakeTensor:
        return None
    if tensor.layout is not torch.strided or base.layout is not torch.strided:
        return None
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    if tensor.dtype is not base.dtype or tensor.is_conj() or tensor.is_neg():
        return None
    if not all(type(size) is int for size in sizes):
        return None
    mode, device = base.fake_mode, tensor.device  # inside, every device is "meta"
    with in_kernel_invocation_manager(mode), torch._C._DisableTorchDispatch():
        view = torch.as_strided(base, tensor.shape, tensor.stride(), tensor.storage_offset())
        return FakeTensor(mode, view, device)
