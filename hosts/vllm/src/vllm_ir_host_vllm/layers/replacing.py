"""Telling vLLM to make our subclass wherever a model asks for one of its layers, by vLLM's own door `register_oot`.

vLLM goes by the exact name of the class that a model asks for, so every class has a subclass of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from vllm_ir_host_vllm.families import descendants
from vllm_ir_host_vllm.layers.forwards import Calls
from vllm_ir_host_vllm.layers.kinds import KINDS, METHODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping

    from vllm_ir_host_vllm.layers.kinds import Kind

PREFIX: Final = "VllmIr"
"""How the names of our subclasses begin."""

_OWN: Final = ("forward", "forward_static", *METHODS)


@dataclass(slots=True)
class Replacing:
    """What became of vLLM's layers.

    Attributes:
        replaced: the ops of each class that runs on ops, by its name.
        left: name of a class and why it stays as it is.
    """

    replaced: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left: list[tuple[str, str]] = field(default_factory=list)

    def told(self, lead: Callable[[str], str]) -> str:
        """Return which layers run on ops and by whom, and which stay with the reason.

        Args:
            lead: returns the provider that is tried first for an op.
        """
        ran = [f"{name} by {' and '.join(dict.fromkeys(map(lead, ops)))}" for name, ops in self.replaced.items()]
        left = ", ".join(f"{name} ({why})" for name, why in self.left)
        return f"vllm-ir, layers on ops: {', '.join(ran) or 'none'}" + (f"; left: {left}" if left else "")


def replace(
    taken: MutableMapping[str, Any],
    wanted: Callable[[Kind], str | None],
    kinds: Iterable[Kind] = KINDS,
    calls: Calls | None = None,
) -> Replacing:
    """Replace layers; the classes of ours that an earlier model in this process had are taken back.

    Args:
        taken: vLLM's table of out-of-tree classes by name.
        wanted: returns why a kind of layer is not to be replaced, or None.
        kinds: the layers.
        calls: the ops as layers call them.
    """
    done, calls = Replacing(), calls or Calls()
    for name in [name for name, cls in taken.items() if is_ours(cls)]:
        del taken[name]
    for kind in kinds:
        try:
            base = getattr(import_module(kind.module), kind.name)
        except (ImportError, AttributeError):
            done.left.append((kind.name, "this vLLM has no such class"))
            continue
        reason = wanted(kind)
        family = [cls for cls in (base, *descendants(base)) if not is_ours(cls)]
        if reason is not None:
            done.left.append((kind.name, reason))
            continue
        for cls in family:
            why = _why_left(cls, base, kind, taken)
            if why is not None:
                done.left.append((cls.__name__, why))
                continue
            subclass(cls, kind, calls)
            done.replaced[cls.__name__] = kind.ops
    return done


def is_ours(cls: type | None) -> bool:
    """Tell whether a class was made here."""
    return cls is not None and cls.__module__ == __name__


def subclass(cls: Any, kind: Kind, calls: Calls) -> Any:
    """Make the subclass of one of vLLM's classes, and register it."""
    forward = staticmethod(kind.make(calls)) if kind.static else kind.make(calls)
    body = {"__module__": __name__, "__doc__": f"vLLM's {cls.__name__} on ops of vllm-ir."}
    made = type(f"{PREFIX}{cls.__name__}", (cls,), {**body, **dict.fromkeys(METHODS, forward)})
    named = cls.name
    cls.register_oot(made)
    # register_oot puts the name of the class here, and `custom_ops` would find nothing by it.
    made.name = named  # type: ignore[attr-defined]  # an attribute of vLLM's classes
    return made


def _why_left(cls: Any, base: Any, kind: Kind, taken: MutableMapping[str, Any]) -> str | None:
    """Return why a class stays as it is, or None."""
    other = taken.get(cls.__name__)
    if other is not None:
        return f"{other.__module__}.{other.__qualname__} is registered for it already"
    if cls is base:
        return None
    if not kind.family:
        return f"it is a subclass of {base.__name__} of its own"
    own = [name for name in _OWN if getattr(cls, name, None) is not getattr(base, name, None)]
    return f"it has a {own[0]} of its own" if own else None
