"""What options and modes Inductor has, and which values they take; asked without touching what is set."""

from __future__ import annotations

import types
from typing import Any, get_args, get_origin

from vllm_ir.compile import torch_version


def names() -> tuple[str, ...]:
    """Return the names of all options."""
    return tuple(torch_version.inductor_config().get_config_copy())


def modes() -> tuple[str, ...]:
    """Return the modes of torch.compile."""
    from torch import _inductor

    return tuple(_inductor.list_mode_options())


def mistake(name: str, value: object) -> str | None:
    """Return what an option takes instead of a value, or None where the value will do.

    As torch.compile: types with parameters, such as those of containers, are not looked at.

    Args:
        name: of an option that exists.
        value: what it is to be.
    """
    wanted: Any = torch_version.inductor_config().get_type(name)
    kinds = get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if any(get_origin(kind) is not None or not isinstance(kind, type) for kind in kinds) or isinstance(value, kinds):
        return None
    return "a value of type " + " or ".join(kind.__name__ for kind in kinds)
