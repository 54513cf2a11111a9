"""Verbs of other distributions: found in metadata, loaded only when they are called.

What a verb does with its arguments is its own business.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_ir.environment import Environment
from vllm_ir.errors import BrokenVerb, DeniedVerb, DuplicateVerb
from vllm_ir.plugins.distributions import scan
from vllm_ir.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.plugins.distributions import EntryPoint, Installed

    Verb = Callable[[list[str]], int]

_SELF: Final = re.compile(r"`vllm-ir [^`]*`: *")
"""How the docstring of a verb's module may begin."""


def find() -> dict[str, list[Installed]]:
    """Return the distributions that bring each verb, verbs in alphabetical order."""
    found: dict[str, list[Installed]] = {}
    for one in scan():
        for entry_point in one.commands:
            found.setdefault(entry_point.name, []).append(one)
    return dict(sorted(found.items()))


def denied_by(one: Installed, policy: Policy) -> str | None:
    """Return the list that denies a distribution, in words, or None.

    A distribution is denied by its own name, or when every provider it brings is. One that brings none, such as a
    host, is no business of the lists of providers: `VLLM_IR_PROVIDERS_DISABLED='*' vllm-ir run` runs, on native.
    """
    denies = policy.denies(one.name)
    if denies is not None:
        return denies
    refusals = [policy.refuse(entry_point.name, one.name) for entry_point in one.providers]
    first = refusals[0] if refusals and all(refusals) else None
    return first.where if first else None


def describe(verb: str, found: Sequence[Installed]) -> str:
    """Return what a verb does and where it comes from, for `--help`."""
    origin = _origin(found)
    purpose = "" if len(found) > 1 else purpose_of(next(each for each in found[0].commands if each.name == verb))
    return f"{purpose} {origin}" if purpose else origin


def purpose_of(entry_point: EntryPoint) -> str:
    """Return the first line of the docstring of a verb's module, without the verb before it; nothing is imported."""
    top, *parts = entry_point.module.split(".")
    try:
        spec = importlib.util.find_spec(top)
        origin = None if spec is None else spec.origin
        if origin is None:
            return ""
        # The file of a package is its `__init__.py`; a module of it lies beside that.
        place = Path(origin).parent.joinpath(*parts)
        files = (place.with_suffix(".py"), place / "__init__.py") if parts else (Path(origin),)
        source = next(file.read_text(encoding="utf-8") for file in files if file.is_file())
        text = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    except (OSError, ValueError, SyntaxError, StopIteration):
        return ""  # an archive, or something broken, which calling it will tell
    return _SELF.sub("", text).rstrip(".")


def _origin(found: Sequence[Installed]) -> str:
    """Return where a verb comes from."""
    names = " and ".join(f"{one.name} {one.version}" for one in found)
    if len(found) > 1:
        return f"(brought by {names}: neither can be meant)"
    denies = denied_by(found[0], Policy.read(Environment.read()))
    return f"(from {names}, denied by {denies})" if denies else f"(from {names})"


def load(verb: str, found: Sequence[Installed]) -> Verb:
    """Import a verb and return its function.

    Args:
        verb: its name.
        found: the distributions that bring it, at least one.

    Raises:
        DuplicateVerb: there are two.
        DeniedVerb: the operator denies its distribution; nothing of it was imported.
        BrokenVerb: it cannot be imported, or is nothing that can be called.
    """
    if len(found) > 1:
        raise DuplicateVerb(verb=verb, distributions=[one.name for one in found])
    (one,) = found
    denies = denied_by(one, Policy.read(Environment.read()))
    if denies:
        raise DeniedVerb(verb=verb, distribution=one.name, variable=denies)
    entry_point = next(each for each in one.commands if each.name == verb)
    value = f"{entry_point.module}:{entry_point.attribute}"
    try:
        target: object = import_module(entry_point.module)
        for name in (entry_point.attribute or "main").split("."):
            target = getattr(target, name)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise BrokenVerb(verb=verb, distribution=one.name, value=value, cause=cause) from error
    if not callable(target):
        raise BrokenVerb(verb=verb, distribution=one.name, value=value, cause=f"{target!r} cannot be called")
    return target
