"""An op before it has any effect: a frozen reading of its native function that checks itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from vllm_ir.composition import Composition
from vllm_ir.errors import BadSignature, BadValue, InplaceOutputs, UnknownActivation
from vllm_ir.implementation import IrOpImpl
from vllm_ir.names import NATIVE, RESERVED_PREFIX, UNFUSED, check_new_op_name
from vllm_ir.signature import SchemaTypes, Signature, infer_schema, read_types

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.op import IrOp


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
        composition: the meaning over the op's parts; None for an op without parts.
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
    composition: Composition | None = None

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
        parts: Sequence[IrOp] = (),
        expansion: Callable[..., Any] | None = None,
    ) -> OpDeclaration:
        """Return the declaration that follows from a native function, or from a meaning over parts.

        Args:
            native: the function; without an expansion, the meaning over parts if there are any.
            name: the op's name; the function's when None.
            activations: names of parameters; those that begin with "x" when None.
            allow_inplace: whether to make a `maybe_inplace`.
            batch_invariant: what eager native guarantees.
            where: file and line for messages.
            parts: the ops that it can be taken apart into.
            expansion: the meaning over parts of an op whose native function is written otherwise.

        Raises:
            BadName, BadValue, BadSignature, KeywordOnlyParameter, UnknownActivation, InplaceOutputs: as each says.
        """
        name = check_new_op_name(getattr(native, "__name__", repr(native)) if name is None else name)
        who = f"op {name!r}"
        composition = Composition(name, expansion or native, tuple(parts)) if parts else None
        if composition is not None and expansion is None:
            native = composition.over(composition.natives(), name)
        for field, value in (("allow_inplace", allow_inplace), ("batch_invariant", batch_invariant)):
            if not isinstance(value, bool):
                raise BadValue(who=who, field=field, got=repr(value), wanted="a bool")
        if isinstance(activations, str) or not isinstance(activations, (list, tuple, type(None))):
            raise BadValue(who=who, field="activations", got=repr(activations), wanted="a list of parameter names")
        signature = Signature.read(native, who)
        if composition is not None and expansion is not None:
            _check_expansion(composition, signature)
        _check_names(who, signature)
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
        if allow_inplace and (not ordered or len(types.outputs) < len(ordered) or {*types.outputs} != {"Tensor"}):
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
            composition=composition,
        )

    @property
    def parts(self) -> tuple[IrOp, ...]:
        """The ops that it can be taken apart into."""
        return () if self.composition is None else cast("tuple[IrOp, ...]", self.composition.parts)

    @property
    def activation_indices(self) -> tuple[int, ...]:
        """Positions of the activations among the parameters."""
        return tuple(i for i, name in enumerate(self.signature.names) if name in self.activations)


def _check_names(who: str, signature: Signature) -> None:
    """Raise for a parameter that is called like something in generated code.

    Raises:
        BadSignature: there is one.
    """
    for parameter in signature.names:
        if parameter.startswith(RESERVED_PREFIX):
            raise BadSignature(
                who=who, problem=f"parameter {parameter!r} begins with {RESERVED_PREFIX!r}", fix="Rename the parameter."
            )


def _check_outputs(who: str, types: SchemaTypes, *, allow_inplace: bool) -> None:
    """Raise unless an op returns tensors, since nothing else can be traced, faked or differentiated.

    Raises:
        BadSignature: it returns nothing, or something else.
    """
    if allow_inplace:
        return  # wants as many tensors as activations, which is checked by itself and says more
    if not types.outputs or not all("Tensor" in output for output in types.outputs):
        raise BadSignature(
            who=who, problem=f"it returns ({', '.join(types.outputs)})", fix="Return one tensor or a tuple of tensors."
        )


def _check_expansion(composition: Composition, signature: Signature) -> None:
    """Raise unless an expansion takes the op's parameters behind its parts.

    Raises:
        BadSignature: it takes others.
    """
    who = f"expansion of op {composition.op!r}"
    got = Signature(Signature.read(composition.meaning, who).parameters[1:])
    if got != signature:
        raise BadSignature(
            who=who, problem=f"behind parts it takes {got}, wanted {signature}", fix="Use the op's parameters."
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


def unfused_implementation(declaration: OpDeclaration) -> IrOpImpl | None:
    """Return what runs an op's parts as the implementation by provider `unfused`; None for an op without parts."""
    composition = declaration.composition
    if composition is None:
        return None
    name = f"{declaration.name}_unfused"
    keeping = composition.over(composition.dispatching(donated=False), name)
    giving = keeping
    if declaration.allow_inplace:
        giving = composition.over(composition.donating(declaration.activation_indices), name)
    return IrOpImpl(
        op_name=declaration.name,
        provider=UNFUSED,
        impl_fn=giving,
        inplace=declaration.allow_inplace,
        functional=keeping if declaration.allow_inplace else None,
        activation_indices=declaration.activation_indices,
        where=declaration.where,
        composition=composition,
    )
