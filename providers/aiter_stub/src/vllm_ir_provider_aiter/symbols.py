"""Which functions of AITER are called, with which parameters; and what a package's sources say of them, unimported.

Importing AITER takes seconds and looks for a GPU, so its files are parsed instead. What follows from a difference is
left to `availability`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

READ: Final = "0.1.7.post2.dev18"
"""The version of `amd-aiter` in which the signatures, and the roundings of the kernels behind them, were read."""


@dataclass(frozen=True, slots=True)
class Called:
    """A function of AITER as this provider calls it.

    Attributes:
        name: as AITER exports it.
        positional: the parameters that are given by position, in order.
        keywords: those that are given by name.
    """

    name: str
    positional: tuple[str, ...]
    keywords: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join((*self.positional, *(f'{each}=' for each in self.keywords)))})"


CALLED: Final = {
    "rms_norm": Called("rmsnorm2d_fwd", ("input", "weight", "epsilon"), ("use_model_sensitive_rmsnorm",)),
    "fused_add_rms_norm": Called(
        "rmsnorm2d_fwd_with_add",
        ("out", "input", "residual_in", "residual_out", "weight", "epsilon"),
        ("use_model_sensitive_rmsnorm",),
    ),
    "silu_and_mul": Called("silu_and_mul", ("out", "input")),
    "rotary_embedding": Called(
        "rotary_embedding_fwd",
        ("positions", "query", "key", "head_size", "cos_cache", "sin_cache", "is_neox", "is_nope_first"),
    ),
}
"""By op."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a source says of a function.

    Attributes:
        name: the function's.
        parameters: names in order; only those that may be given by position and by name.
        optional: those of them that have a default.
        strange: whether it has parameters of other kinds, such as *args, so that nothing is known of a call.
        module: of the package's `ops` that defines it.
    """

    name: str
    parameters: tuple[str, ...]
    optional: frozenset[str]
    strange: bool = False
    module: str = ""

    def __str__(self) -> str:
        return f"{self.name}({', '.join(each + '=' * (each in self.optional) for each in self.parameters)})"

    def takes(self, called: Called) -> bool:
        """Tell whether a call fits: the same parameters at the same places, and nothing else that has to be given."""
        given = {*called.positional, *called.keywords}
        return (
            not self.strange
            and self.parameters[: len(called.positional)] == called.positional
            and given <= set(self.parameters)
            and set(self.parameters) - given <= self.optional
        )


def read(package: Path, name: str) -> Signature | None:
    """Return what the sources of AITER say of an exported function, or None where none defines it.

    Args:
        package: the folder of the package `aiter`.
        name: of the function.

    Raises:
        OSError, SyntaxError, ValueError, MemoryError, RecursionError: a source cannot be read.
    """
    for source in sorted((package / "ops").glob("*.py")):
        text = source.read_text(encoding="utf-8")
        if f"def {name}(" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return replace(signature_of(node), module=source.stem)
    return None


def exports(package: Path, found: Signature) -> bool:
    """Tell whether the package itself imports a function from the module that defines it, as its callers need.

    Args:
        package: the folder of the package `aiter`.
        found: what `read` found in it.

    Raises:
        OSError, SyntaxError, ValueError, MemoryError, RecursionError: its `__init__.py` cannot be read.
    """
    source = package / "__init__.py"
    if not source.is_file():
        return False
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[-2:] == ["ops", found.module]
        and any(each.name in ("*", found.name) for each in node.names)
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
    )


def signature_of(node: ast.FunctionDef) -> Signature:
    """Return the signature of a function in a syntax tree."""
    arguments = node.args
    names = tuple(each.arg for each in arguments.args)
    return Signature(
        name=node.name,
        parameters=names,
        optional=frozenset(names[len(names) - len(arguments.defaults) :]),
        strange=bool(arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg),
    )
