"""What options and modes Inductor has, and which values they take; asked without touching what is set."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

from vllm_ir.compile import torch_version

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSES: Final = ("use_pre_grad_passes", "use_post_grad_passes")
"""Options without which Inductor runs no pass of others."""


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


def without_passes(mode: str | None, given: Mapping[str, Any]) -> str | None:
    """Return the option that turns off the passes in which ops are replaced, or None.

    Args:
        mode: one of torch.compile's modes.
        given: options that go before it.
    """
    config = torch_version.inductor_config()
    asked = {**torch_version.mode_options(mode), **given}
    return next((name for name in PASSES if not asked.get(name, getattr(config, name, True))), None)
