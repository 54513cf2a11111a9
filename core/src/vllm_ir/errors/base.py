"""The root of every error: one sentence for a person, the facts as attributes for a program.

What each subject's errors say lives beside this file, one module a subject.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class IrError(Exception):
    """Root of all errors that vllm-ir raises on purpose.

    Args:
        message: the sentence a person reads.
        facts: the keyword arguments of the subclass; kept so that the error pickles.
    """

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self._facts = facts

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from the facts, since a worker process reports its errors by pickling them."""
        return (_rebuild, (type(self), self._facts))


class DeclarationError(IrError, ValueError):
    """An author's mistake in an op or an implementation; nothing was registered."""


class ConfigurationError(IrError, ValueError):
    """A user's mistake in a list, a file, a variable or a flag."""


class SelectionError(IrError, RuntimeError):
    """No implementation may run where one must."""


class CallError(IrError, TypeError):
    """A wrong call of an op."""


class ProviderError(IrError, RuntimeError):
    """A distribution that did not load, with the kind of its failure as the class.

    Attributes:
        kind: the kind in a few words, for a table.
        fault: whether somebody has to mend something; False where this machine or its operator leaves it out.
    """

    kind: ClassVar[str] = "failed"
    fault: ClassVar[bool] = True


class InternalError(IrError, RuntimeError):
    """Something that cannot happen did.

    Args:
        what: what was found where it cannot be.
    """

    def __init__(self, *, what: str) -> None:
        self.what = what
        super().__init__(f"{what} This is a fault in vllm-ir itself; please report it with this text.", what=what)


class IrWarning(UserWarning):
    """Something that was asked for is degraded."""


def _rebuild(kind: type[IrError], facts: dict[str, object]) -> IrError:
    """Return an error of one kind made anew from its facts."""
    return kind(**facts)  # type: ignore[arg-type]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or an empty text."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def ended(text: str) -> str:
    """Return a text with the stop that ends a sentence, where it has none of its own, as a question has."""
    return text if text.endswith((".", "?")) else f"{text}."


def listed(names: Iterable[str]) -> str:
    """Return names quoted and joined by commas, or "none"."""
    return ", ".join(repr(name) for name in names) or "none"
