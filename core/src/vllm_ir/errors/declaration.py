"""What an author of an op or an implementation reads when a declaration is refused.

A declaration that raises one of these has left nothing behind, neither in the registry nor in torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors.base import DeclarationError, did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Sequence


class BadName(DeclarationError):
    """A name that torch, a file or a command line could not carry."""

    def __init__(self, *, kind: str, name: str, reason: str | None = None) -> None:
        self.kind, self.name, self.reason = kind, name, reason
        wanted = "wanted a lower-case letter or underscore, then lower-case letters, digits or underscores"
        super().__init__(
            f"{kind} name {name!r} is not legal: {reason or wanted}. Rename it.", kind=kind, name=name, reason=reason
        )


class ReservedName(DeclarationError):
    """A provider name that vllm-ir keeps for itself."""

    def __init__(self, *, name: str, reserved: Sequence[str]) -> None:
        self.name, self.reserved = name, tuple(reserved)
        super().__init__(
            f"Provider name {name!r} is reserved (reserved names: {listed(reserved)})."
            " Name the provider after its library.",
            name=name,
            reserved=tuple(reserved),
        )


class BadSignature(DeclarationError):
    """A function whose signature torch or dispatch cannot take."""

    def __init__(self, *, who: str, problem: str, fix: str) -> None:
        self.who, self.problem, self.fix = who, problem, fix
        super().__init__(f"{who}: {problem}. {fix}", who=who, problem=problem, fix=fix)


class KeywordOnlyParameter(DeclarationError):
    """A parameter that could only be given by keyword; graphs hand arguments over by position."""

    def __init__(self, *, who: str, parameter: str) -> None:
        self.who, self.parameter = who, parameter
        super().__init__(
            f"{who}: parameter {parameter!r} is keyword-only, but graphs pass an op's arguments by position."
            " Remove the '*' before it.",
            who=who,
            parameter=parameter,
        )


class SchemaMismatch(DeclarationError):
    """An implementation whose schema, or that of its functional form, is not the op's."""

    def __init__(self, *, op: str, provider: str, got: str, wanted: str, part: str = "implementation") -> None:
        self.op, self.provider, self.got, self.wanted, self.part = op, provider, got, wanted, part
        super().__init__(
            f"{part.capitalize()} of op {op!r} by provider {provider!r} has the schema {got}, wanted {wanted}."
            " Names, types and defaults must be those of the native function.",
            op=op,
            provider=provider,
            got=got,
            wanted=wanted,
            part=part,
        )


class PredicateMismatch(DeclarationError):
    """A `supports_args` whose parameters are not those of its implementation."""

    def __init__(self, *, op: str, provider: str, got: str, wanted: str) -> None:
        self.op, self.provider, self.got, self.wanted = op, provider, got, wanted
        super().__init__(
            f"supports_args of op {op!r} by provider {provider!r} takes {got}, wanted {wanted}:"
            " the same names and defaults in the same order, so that dispatch can call it without binding.",
            op=op,
            provider=provider,
            got=got,
            wanted=wanted,
        )


class BadValue(DeclarationError):
    """A part of a declaration that has the wrong type."""

    def __init__(self, *, who: str, field: str, got: str, wanted: str) -> None:
        self.who, self.field, self.got, self.wanted = who, field, got, wanted
        super().__init__(f"{who}: {field} is {got}, wanted {wanted}.", who=who, field=field, got=got, wanted=wanted)


class UnknownActivation(DeclarationError):
    """An activation that is no tensor parameter of the op."""

    def __init__(self, *, op: str, activation: str, known: Sequence[str]) -> None:
        self.op, self.activation, self.known = op, activation, tuple(known)
        super().__init__(
            f"Op {op!r}: activation {activation!r} is no tensor parameter (tensor parameters: {listed(known)})."
            f"{did_you_mean(activation, known)}",
            op=op,
            activation=activation,
            known=tuple(known),
        )


class InplaceOutputs(DeclarationError):
    """An op with `allow_inplace` whose outputs are no tensors, or fewer than its activations."""

    def __init__(self, *, op: str, outputs: str, activations: Sequence[str]) -> None:
        self.op, self.outputs, self.activations = op, outputs, tuple(activations)
        super().__init__(
            f"Op {op!r} allows in-place, so it must return at least one tensor per activation:"
            f" got outputs {outputs}, wanted {len(activations)} tensor(s) for activations {listed(activations)}."
            " Change the outputs, name the activations, or drop allow_inplace.",
            op=op,
            outputs=outputs,
            activations=tuple(activations),
        )


class InplaceNotAllowed(DeclarationError):
    """An in-place implementation of an op whose meaning has no in-place form."""

    def __init__(self, *, op: str, provider: str) -> None:
        self.op, self.provider = op, provider
        super().__init__(
            f"Implementation of op {op!r} by provider {provider!r} is declared inplace=True, but the op does not"
            " allow it. Return new tensors, or register the op with allow_inplace=True.",
            op=op,
            provider=provider,
        )


class DuplicateOp(DeclarationError):
    """A second op under a name that is taken."""

    def __init__(self, *, op: str, where: str) -> None:
        self.op, self.where = op, where
        super().__init__(
            f"Op {op!r} is already registered ({where}). Choose another name; an op's meaning never changes"
            " under its name.",
            op=op,
            where=where,
        )


class DuplicateImplementation(DeclarationError):
    """A second implementation of one op by one provider."""

    def __init__(self, *, op: str, provider: str, where: str) -> None:
        self.op, self.provider, self.where = op, provider, where
        super().__init__(
            f"Op {op!r} already has an implementation by provider {provider!r} ({where})."
            " Give the second one a provider name of its own.",
            op=op,
            provider=provider,
            where=where,
        )


class TornDeclaration(DeclarationError):
    """An implementation handed to an op that it was not written for."""

    def __init__(self, *, op: str, provider: str, declared: str) -> None:
        self.op, self.provider, self.declared = op, provider, declared
        super().__init__(
            f"Provider {provider!r} declared an implementation of op {declared!r}, which was given to op {op!r}."
            f" Register it with ops.{declared}.",
            op=op,
            provider=provider,
            declared=declared,
        )


class UnregisteredOp(DeclarationError):
    """A call of an op whose declaration is still under way, or has failed with others it was made with."""

    def __init__(self, *, op: str) -> None:
        self.op = op
        super().__init__(
            f"Op {op!r} cannot be called: the transaction that declares it has not ended, or has failed."
            " Call it after its distribution has been loaded.",
            op=op,
        )


class CalledWhileLoading(DeclarationError):
    """An op that was asked for while providers are being loaded, one of which a user named for it."""

    def __init__(self, *, op: str | None, provider: str, layer: str) -> None:
        self.op, self.provider, self.layer = op, provider, layer
        what, which = ("Every op was configured", "all") if op is None else (f"Op {op!r} was called", "it")
        super().__init__(
            f"{what} while providers are still being loaded, so {provider!r}, which {layer} names for {which},"
            " is not there yet. The import and the hooks of a provider may not call ops, except for the hook"
            " vllm_ir_warm_up; the author moves the call there, or into an implementation.",
            op=op,
            provider=provider,
            layer=layer,
        )


class RetiredOp(DeclarationError):
    """An op whose name torch still holds for one that was forgotten, with another schema."""

    def __init__(self, *, op: str, got: str, wanted: str) -> None:
        self.op, self.got, self.wanted = op, got, wanted
        super().__init__(
            f"Op {op!r} was registered before in this process with the schema {wanted}, got {got}. Torch keeps an op's"
            " schema until the process ends; choose another name.",
            op=op,
            got=got,
            wanted=wanted,
        )


class DefinedElsewhere(DeclarationError):
    """An op whose name in torch is taken by a definition that is not vllm-ir's."""

    def __init__(self, *, op: str, namespace: str) -> None:
        self.op, self.namespace = op, namespace
        super().__init__(
            f"Op {op!r} cannot be bound: torch.ops.{namespace}.{op} is defined already, by code outside vllm-ir."
            " Choose another name, or remove that definition.",
            op=op,
            namespace=namespace,
        )


class MissingGenerator(DeclarationError):
    """Inputs asked of an op that has no generator."""

    def __init__(self, *, op: str) -> None:
        self.op = op
        super().__init__(
            f"Op {op!r} has no input generator. Add one with @ops.{op}.register_input_generator; it must take"
            " num_tokens.",
            op=op,
        )


class MissingTolerance(DeclarationError):
    """A tolerance asked for a dtype that has none."""

    def __init__(self, *, op: str, dtype: str, known: Sequence[str]) -> None:
        self.op, self.dtype, self.known = op, dtype, tuple(known)
        super().__init__(
            f"Op {op!r} has no tolerance for {dtype} (there are: {listed(known)})."
            f" Add one with ops.{op}.override_tolerance({dtype}, atol=..., rtol=...).",
            op=op,
            dtype=dtype,
            known=tuple(known),
        )
