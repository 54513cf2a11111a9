"""The one place where AITER is imported: at the first call of one of its functions."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

from vllm_ir_provider_aiter.availability import DISTRIBUTION, version_of
from vllm_ir_provider_aiter.errors import CannotBuild, CannotImport

if TYPE_CHECKING:
    from collections.abc import Callable


@cache
def function(name: str) -> Callable[..., Any]:
    """Return a function of AITER, which is imported for it.

    Raises:
        CannotImport: it cannot be imported, for whatever reason.
    """
    try:
        found: Callable[..., Any] = getattr(importlib.import_module("aiter"), name)
    except (Exception, SystemExit) as error:
        raise CannotImport(function=name, version=_version(), cause=_words(error)) from error
    return found


def call(name: str, *args: Any, **keywords: Any) -> Any:
    """Call a function of AITER and return its result.

    Raises:
        CannotImport: it cannot be imported.
        CannotBuild: AITER could not compile it, which it says by ending the process.
    """
    called = function(name)
    try:
        return called(*args, **keywords)
    except SystemExit as error:
        raise CannotBuild(function=name, version=_version(), cause=_words(error)) from error


def _version() -> str:
    """Return AITER's version, for a sentence."""
    return version_of(DISTRIBUTION) or "of unknown version"


def _words(error: BaseException) -> str:
    """Return an exception with its kind, on one line, and what it came from."""
    cause = error.__cause__
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{said} (from {' '.join(f'{type(cause).__name__}: {cause}'.split())})" if cause is not None else said
