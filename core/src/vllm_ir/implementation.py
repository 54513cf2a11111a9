"""One op by one provider: a frozen declaration that checks itself and has no effect.

What it refuses, and why, is known here; who stands before or after it is not.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir.errors import BadSignature, BadValue, PredicateMismatch
from vllm_ir.names import NATIVE, UNFUSED, check_name, check_provider_name
from vllm_ir.signature import Signature
from vllm_ir.verdict import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.composition import Composition


@dataclass(frozen=True, slots=True, eq=False)
class IrOpImpl:
    """An implementation of one op by one provider.

    Attributes:
        op_name: the op.
        provider: the name by which priorities call it.
        impl_fn: the function; its schema is that of the op's native function.
        supported: whether this platform can run it at all; an Unsupported says why not.
        predicate: `supports_args`, or None when it takes every call.
        inplace: it may write to the op's activations and return them.
        functional: an in-place implementation's other form, which writes no input; None where inputs are copied.
        batch_invariant: a row's result does not depend on the other rows, bit for bit.
        distribution: the distribution that brought it, or None when a program registered it by itself.
        devices: torch device types whose tensors it may be given; None when it takes any.
        activation_indices: positions of the op's activations; filled when the implementation is registered.
        where: file and line of the declaration.
        composition: the op's meaning over its parts, for the implementation that runs those; None for all others.

    Raises:
        BadName: the op's or the provider's name is not legal.
        ReservedName: the provider's name is kept by vllm-ir.
        BadSignature, KeywordOnlyParameter: a function cannot be read, or `functional` takes other parameters.
        BadValue: a field has the wrong type, or a `functional` stands where nothing is written anyway.
        PredicateMismatch: the predicate's parameters are not those of the function.
    """

    op_name: str
    provider: str
    impl_fn: Callable[..., Any]
    supported: bool | Unsupported = True
    predicate: Callable[..., bool | Unsupported] | None = None
    inplace: bool = False
    functional: Callable[..., Any] | None = None
    batch_invariant: bool = False
    distribution: str | None = None
    devices: frozenset[str] | None = None
    activation_indices: tuple[int, ...] = ()
    where: str = ""
    composition: Composition | None = None

    def __post_init__(self) -> None:
        """Check every field; nothing is bound or registered."""
        check_name(self.op_name, "Op")
        ours = self.provider == NATIVE or (self.provider == UNFUSED and self.composition is not None)
        if not ours or self.predicate is not None:
            check_provider_name(self.provider)
        who = f"implementation of op {self.op_name!r} by provider {self.provider!r}"
        if not callable(self.impl_fn):
            raise BadValue(who=who, field="the implementation", got=repr(self.impl_fn), wanted="a function")
        signature = Signature.read(self.impl_fn, who)
        if not isinstance(self.supported, (bool, Unsupported)):
            raise BadValue(
                who=who, field="supported", got=repr(self.supported), wanted="a bool or Unsupported(sentence)"
            )
        for field in ("inplace", "batch_invariant"):
            if not isinstance(getattr(self, field), bool):
                raise BadValue(who=who, field=field, got=repr(getattr(self, field)), wanted="a bool")
        if self.functional is not None:
            self._check_functional(who, signature)
        if self.predicate is None:
            return
        if not callable(self.predicate):
            raise BadValue(who=who, field="supports_args", got=repr(self.predicate), wanted="a function or None")
        predicate = Signature.read(self.predicate, f"supports_args of the {who}")
        if predicate != signature:
            raise PredicateMismatch(op=self.op_name, provider=self.provider, got=str(predicate), wanted=str(signature))

    def _check_functional(self, who: str, signature: Signature) -> None:
        """Raise unless `functional` is of use and can be called in place of the function."""
        if not callable(self.functional):
            raise BadValue(who=who, field="functional", got=repr(self.functional), wanted="a function or None")
        if not self.inplace:
            raise BadValue(
                who=who,
                field="functional",
                got=getattr(self.functional, "__name__", repr(self.functional)),
                wanted="None, since without inplace=True the implementation itself writes no input",
            )
        got = Signature.read(self.functional, f"functional of the {who}")
        if got != signature:
            raise BadSignature(
                who=f"functional of the {who}",
                problem=f"it takes {got}, wanted {signature}",
                fix="Use the parameters of the in-place function.",
            )

    @property
    def supports_all_args(self) -> bool:
        """Whether it takes every call that the op may get."""
        return self.predicate is None

    def supports_args(self, *args: Any, **kwargs: Any) -> bool | Unsupported:
        """Return what its predicate answers for these arguments; True without a predicate."""
        return True if self.predicate is None else self.predicate(*args, **kwargs)

    def func_impl_fn(self, *args: Any, **kwargs: Any) -> Any:
        """Run it so that no argument changes: by `functional`, or on copies of the activations if it writes to them."""
        if self.functional is not None:
            return self.functional(*args, **kwargs)
        if not self.inplace:
            return self.impl_fn(*args, **kwargs)
        import torch

        names = Signature.read(self.impl_fn, self.provider).names
        # The copies are contiguous because the outputs, which are these copies, have to be.
        positional = [
            value.clone(memory_format=torch.contiguous_format) if i in self.activation_indices else value
            for i, value in enumerate(args)
        ]
        keyword = {
            name: value.clone(memory_format=torch.contiguous_format)
            if names.index(name) in self.activation_indices
            else value
            for name, value in kwargs.items()
        }
        return self.impl_fn(*positional, **keyword)

    def __repr__(self) -> str:
        """Return op, provider and origin."""
        origin = f" from {self.distribution}" if self.distribution else ""
        return f"IrOpImpl({self.op_name!r}, {self.provider!r}{origin})"


def implements(
    op_name: str,
    *,
    provider: str,
    supported: bool | Unsupported = True,
    supports_args: Callable[..., bool | Unsupported] | None = None,
    inplace: bool = False,
    functional: Callable[..., Any] | None = None,
    batch_invariant: bool = False,
) -> Callable[[Callable[..., Any]], IrOpImpl]:
    """Declare an implementation without registering it; a provider's hook returns such values.

    Args:
        op_name: the op.
        provider: the provider's name.
        supported: whether this platform can run it at all; Unsupported(sentence) says why not.
        supports_args: called with the op's arguments; returns a bool or Unsupported(sentence). It has the same
            parameters as the function and looks at dtypes, trailing sizes and strides only.
        inplace: it may write to the op's activations and return them.
        functional: for an in-place implementation, a function with the same schema and the same results that writes no
            input. Calls that donate nothing run it; without it they copy the activations first.
        batch_invariant: a row's result does not depend on the other rows, bit for bit.

    Returns:
        A decorator that turns a function with the op's schema into an `IrOpImpl`.

    Raises:
        DeclarationError: a part of the declaration does not fit; see `IrOpImpl`.
    """
    where = caller(2)

    def declare(function: Callable[..., Any]) -> IrOpImpl:
        """Return the declaration of the decorated function."""
        check_provider_name(provider)
        return IrOpImpl(
            op_name=op_name,
            provider=provider,
            impl_fn=function,
            supported=supported,
            predicate=supports_args,
            inplace=inplace,
            functional=functional,
            batch_invariant=batch_invariant,
            where=where,
        )

    return declare


def caller(depth: int) -> str:
    """Return "file:line" of the frame that many levels up; a whole stack would cost a hundred times as much."""
    frame = sys._getframe(depth)  # noqa: SLF001 - inspect.stack costs 200 times as much
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
