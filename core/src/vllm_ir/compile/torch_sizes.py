"""Sizes that a graph leaves open: what they were when it was traced, and how questions about them leave no trace.

Like `torch_version`, written against what torch 2.11 to 2.14 have in common.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def hint_of(size: Any) -> int | None:
    """Return a size, one that is open as it was when the graph was traced; None for one that depends on data."""
    import torch

    if not isinstance(size, torch.SymInt):
        return int(size)
    found: int | None = size.node.hint
    return found


@contextlib.contextmanager
def forgetting_sizes(shape_env: Any) -> Iterator[None]:
    """Forget the sizes that depend on data and were made inside: torch wants to find each in the next result.

    Args:
        shape_env: what knows the sizes, or None.
    """
    if shape_env is None:
        yield
        return
    pending = shape_env.pending_fresh_unbacked_symbols
    before = list(pending)
    try:
        yield
    finally:
        pending[:] = before
