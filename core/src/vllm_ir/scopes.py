"""Leaving a scope that is open in some contexts: which scope the current context then goes back to.

What a scope holds, and who asks for it, is known to those that open it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from contextvars import ContextVar


class Nested(Protocol):
    """A scope inside another.

    Attributes:
        outer: the scope of the same kind around it, or None.
        passed: it was closed before a scope inside it was; the context goes back to the one around it.
    """

    outer: Any
    passed: bool


Scope = TypeVar("Scope", bound=Nested)


def leave(current: ContextVar[Scope | None], scope: Scope) -> None:
    """Let the current context go back to the scope around one.

    A token of the context variable would not do: generators may close scopes in another order than they opened
    them, or in another context, and the token would then bring a closed scope back, or raise.

    Args:
        current: the scope of the current context.
        scope: the one that is closed.
    """
    found = current.get()
    if found is not scope:
        scope.passed = True
        return
    found = scope.outer
    while found is not None and found.passed:
        found = found.outer
    current.set(found)
