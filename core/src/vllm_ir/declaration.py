"""An op before it has any effect: a frozen reading of its native function that checks itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir.errors import BadSignature, BadValue, InplaceOutputs, UnknownActivation
from vllm_ir.implementation import IrOpImpl
from vllm_ir.names import NATIVE, RESERVED_PREFIX, check_new_op_name
from vllm_ir.signature import SchemaTypes, Signature, infer_schema, read_types

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class OpDeclaration:
    """An op before it has any effect; making one checks everything that can be wrong with it.

    Attributes:
        name: the op's name.
        native: the function that is its meaning.
        activations: names of the tensors that `maybe_inplace` donates.
        allow_inplace: whether there is a `maybe_inplace`.
        batch_invariant: whether a row of eager native's result does not depend on the other rows, bit for bit.
        signature: the parameters of native.
        schema: the torch schema of the `default` overload.
        inplace_schema: that of `maybe_inplace`; empty without one.
        types: what the schema says of parameters and results.
        where: file and line of the declaration.
    """

    name: str
    native: Callable[..., Any]
    activations: tuple[str, ...]
    allow_inplace: bool
    batch_invariant: bool
    signature: Signature
    schema: str
    inplace_schema: str
    types: SchemaTypes
    where: str

    @classmethod
    def read(
        cls,
        native: Callable[..., Any],
        *,
        name: str | None,
        activations: Sequence[str] | None,
        allow_inplace: bool,
        batch_invariant: bool,
        where: str,
    ) -> OpDeclaration:
        """Return the declaration that follows from a native function.

        Args:
            native: the function.
            name: the op's name; the function's when None.
            activations: names of parameters; those that begin with "x" when None.
            allow_inplace: whether to make a `maybe_inplace`.
            batch_invariant: what eager native guarantees.
            where: file and line for messages.

        Raises:
            BadName, BadValue, BadSignature, KeywordOnlyParameter, UnknownActivation, InplaceOutputs: as each says.
        """
        name = check_new_op_name(getattr(native, "__name__", repr(native)) if name is None else name)
        who = f"op {name!r}"
        for field, value in (("allow_inplace", allow_inplace), ("batch_invariant", batch_invariant)):
            if not isinstance(value, bool):
                raise BadValue(who=who, field=field, got=repr(value), wanted="a bool")
        if isinstance(activations, str) or not isinstance(activations, (list, tuple, type(None))):
            raise BadValue(who=who, field="activations", got=repr(activations), wanted="a list of parameter names")
        signature = Signature.read(native, who)
        for parameter in signature.names:
            if parameter.startswith(RESERVED_PREFIX):
                raise BadSignature(
                    who=who,
                    problem=f"parameter {parameter!r} begins with {RESERVED_PREFIX!r}",
                    fix="Rename the parameter.",
                )
        schema = infer_schema(native, who)
        types = read_types(schema, who)
        _check_outputs(who, types, allow_inplace=allow_inplace)
        tensors = [n for n, kind in zip(signature.names, types.kinds, strict=True) if kind == "tensor"]
        if activations is None:
            activations = [tensor for tensor in tensors if tensor.startswith("x")]
        for activation in activations:
            if activation not in tensors:
                raise UnknownActivation(op=name, activation=activation, known=tensors)
        # In the order of the parameters, since outputs stand for activations one by one.
        ordered = tuple(parameter for parameter in signature.names if parameter in activations)
        if allow_inplace and (not ordered or types.outputs != ("Tensor",) * len(ordered)):
            raise InplaceOutputs(op=name, outputs=f"({', '.join(types.outputs)})", activations=ordered)
        return cls(
            name=name,
            native=native,
            activations=ordered,
            allow_inplace=allow_inplace,
            batch_invariant=batch_invariant,
            signature=signature,
            schema=schema,
            inplace_schema=infer_schema(native, who, ordered) if allow_inplace else "",
            types=types,
            where=where,
        )

    @property
    def activation_indices(self) -> tuple[int, ...]:
        """Positions of the activations among the parameters."""
        return tuple(i for i, name in enumerate(self.signature.names) if name in self.activations)


def _check_outputs(who: str, types: SchemaTypes, *, allow_inplace: bool) -> None:
    """Raise unless an op returns tensors, since nothing else can be traced, faked or differentiated.

    Raises:
        BadSignature: it returns nothing, or something else.
    """
    if allow_inplace:
        return  # wants one tensor per activation, which is checked by itself and says more
    if not types.outputs or not all("Tensor" in output for output in types.outputs):
        raise BadSignature(
            who=who, problem=f"it returns ({', '.join(types.outputs)})", fix="Return one tensor or a tuple of tensors."
        )


def native_implementation(declaration: OpDeclaration) -> IrOpImpl:
    """Return the native function as the implementation by provider `native`."""
    return IrOpImpl(
        op_name=declaration.name,
        provider=NATIVE,
        impl_fn=declaration.native,
        batch_invariant=declaration.batch_invariant,
        activation_indices=declaration.activation_indices,
        where=declaration.where,
    )
