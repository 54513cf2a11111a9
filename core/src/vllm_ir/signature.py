"""One reading of a function: parameters, defaults, which are tensors, and the schema that torch gets.

Everything that must agree on a function's shape asks here; nothing else reads a signature.
"""

from __future__ import annotations

import functools
import inspect
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.errors import BadSignature, KeywordOnlyParameter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class _Required:
    """The type of the mark for a parameter without a default."""

    def __repr__(self) -> str:
        """Return a word for messages."""
        return "required"


REQUIRED: Final = _Required()
"""Stands for "no default", since None is a default."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        name: its name.
        default: its default, or REQUIRED.
    """

    name: str
    default: object

    def __str__(self) -> str:
        """Return it as it is written in a signature."""
        return self.name if self.default is REQUIRED else f"{self.name}={self.default!r}"


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a function that an op may have.

    Attributes:
        parameters: in order; all can be given by position.
    """

    parameters: tuple[Parameter, ...]

    @classmethod
    def read(cls, function: Callable[..., Any], who: str) -> Signature:
        """Return the signature of a function.

        Args:
            function: the function to read.
            who: how to call it in an error, such as "op 'rms_norm'".

        Raises:
            BadSignature: it is no function, or takes *args or **kwargs.
            KeywordOnlyParameter: a parameter can only be given by keyword.
        """
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:
            raise BadSignature(
                who=who, problem=f"{function!r} has no signature that can be read", fix="Give a Python function."
            ) from error
        for parameter in parameters:
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                raise KeywordOnlyParameter(who=who, parameter=parameter.name)
            if parameter.kind not in _POSITIONAL:
                raise BadSignature(
                    who=who, problem=f"parameter '{parameter}' takes any number", fix="Name each parameter."
                )
        return cls(
            tuple(
                Parameter(p.name, REQUIRED if p.default is inspect.Parameter.empty else p.default) for p in parameters
            )
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters in order."""
        return tuple(parameter.name for parameter in self.parameters)

    def __str__(self) -> str:
        """Return it as it is written, without types."""
        return f"({', '.join(map(str, self.parameters))})"


def infer_schema(function: Callable[..., Any], who: str, mutates: Sequence[str] = ()) -> str:
    """Return the torch schema of a function's annotations, such as "(Tensor x, float epsilon) -> Tensor".

    Args:
        function: an annotated function.
        who: how to call it in an error.
        mutates: parameters that the schema marks as written to.

    Raises:
        BadSignature: an annotation is missing, or is no type that torch knows.
    """
    import torch

    # Torch looks annotations up in the globals of what it is given, which for a decorated function are the decorator's.
    plain = inspect.unwrap(function, stop=lambda wrapper: hasattr(wrapper, "__signature__"))
    try:
        return torch.library.infer_schema(_readable(plain), mutates_args=list(mutates))
    except (ValueError, NameError, TypeError, AttributeError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        raise BadSignature(
            who=who,
            problem=f"torch cannot read its annotations: {problem}",
            fix="Annotate every parameter and the result with Tensor, Tensor | None, int, float, bool, str, torch.dtype"
            " or lists of these, imported at run time.",
        ) from error


def _readable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the same signature that torch can read: partials and callable objects have no globals."""
    if hasattr(function, "__globals__"):
        return function
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not hasattr(inner, "__globals__"):
        inner = type(inner).__call__
    shown = types.FunctionType(_readable.__code__, inner.__globals__)
    vars(shown)["__signature__"] = inspect.signature(function)
    return shown


@dataclass(frozen=True, slots=True)
class SchemaTypes:
    """What the types of a schema say about an op.

    Attributes:
        kinds: per parameter "tensor", "optional tensor", "tensors" (a list of them) or "value".
        words: per parameter the type as torch writes it.
        outputs: the types of the results as torch writes them.
    """

    kinds: tuple[str, ...]
    words: tuple[str, ...]
    outputs: tuple[str, ...]


def read_types(schema: str, who: str) -> SchemaTypes:
    """Return what a schema, as `infer_schema` returns it, says about its parameters and results.

    Raises:
        BadSignature: a default is written in a way that torch cannot read back, such as an infinity.
    """
    import torch

    try:
        parsed = torch._C.parse_schema(f"op{schema}")
    except RuntimeError as error:
        raise BadSignature(
            who=who, problem=f"torch cannot read its schema {schema}", fix="Give defaults that are finite numbers."
        ) from error
    # The plain type of a dtype is int; the real one says what it stands for.
    words = tuple(str(argument.real_type) for argument in parsed.arguments)
    kinds = {"Tensor": "tensor", "Optional[Tensor]": "optional tensor"}
    return SchemaTypes(
        kinds=tuple(kinds.get(word, "tensors" if "Tensor" in word else "value") for word in words),
        words=words,
        outputs=tuple(str(result.type) for result in parsed.returns),
    )
