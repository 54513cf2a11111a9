"""What a user reads who named an op, a provider, a variable or a file that does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors.base import ConfigurationError, did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Sequence


class UnknownOp(ConfigurationError, AttributeError):
    """An op that nobody has registered."""

    def __init__(self, *, op: str, known: Sequence[str], layer: str | None = None) -> None:
        self.op, self.known, self.layer = op, tuple(known), layer
        super().__init__(
            f"{_by(layer)}op {op!r} is not registered (registered ops: {listed(known)}).{did_you_mean(op, known)}",
            op=op,
            known=tuple(known),
            layer=layer,
        )


class UnknownProvider(ConfigurationError):
    """A provider that no installed distribution and no registered implementation has."""

    def __init__(self, *, op: str | None, provider: str, known: Sequence[str], layer: str | None = None) -> None:
        self.op, self.provider, self.known, self.layer = op, provider, tuple(known), layer
        super().__init__(
            f"{_by(layer)}provider {provider!r} for {_op(op)} is not installed (there are: {listed(known)})."
            f"{did_you_mean(provider, known)} Install its distribution, or see `vllm-ir list`.",
            op=op,
            provider=provider,
            known=tuple(known),
            layer=layer,
        )


class ProviderLacksOp(ConfigurationError):
    """A provider that is here but has no implementation of the op it was named for."""

    def __init__(self, *, op: str, provider: str, has: Sequence[str], layer: str | None = None) -> None:
        self.op, self.provider, self.has, self.layer = op, provider, tuple(has), layer
        super().__init__(
            f"{_by(layer)}provider {provider!r} has no implementation of op {op!r} (it implements:"
            f" {listed(has)}). Take it out of the list of {op!r}.",
            op=op,
            provider=provider,
            has=tuple(has),
            layer=layer,
        )


class NoParts(ConfigurationError):
    """An op that was to run unfused and is made of no other ops."""

    def __init__(self, *, op: str, has: Sequence[str], layer: str | None = None) -> None:
        self.op, self.has, self.layer = op, tuple(has), layer
        super().__init__(
            f"{_by(layer)}op {op!r} cannot run 'unfused': it has no parts (ops with parts: {listed(has)})."
            f" Take 'unfused' out of the list of {op!r}.",
            op=op,
            has=tuple(has),
            layer=layer,
        )


class UnusableProvider(ConfigurationError):
    """A provider the user named that cannot run here whatever the arguments."""

    def __init__(self, *, op: str | None, provider: str, reason: str, layer: str | None = None) -> None:
        self.op, self.provider, self.reason, self.layer = op, provider, reason, layer
        super().__init__(
            f"{_by(layer)}provider {provider!r} cannot run {_op(op)} here: {reason.rstrip('.')}."
            " Mend that, or take it out of the list.",
            op=op,
            provider=provider,
            reason=reason,
            layer=layer,
        )


class MalformedPriority(ConfigurationError):
    """A priority list that cannot be read."""

    def __init__(self, *, text: str, reason: str, layer: str | None = None) -> None:
        self.text, self.reason, self.layer = text, reason, layer
        super().__init__(
            f"{_by(layer)}{text!r} is no priority list: {reason}. Write op=provider,provider with ';' between ops,"
            " for example rms_norm=fast,native;silu_and_mul=native.",
            text=text,
            reason=reason,
            layer=layer,
        )


class MalformedVariable(ConfigurationError):
    """An environment variable whose value cannot be read."""

    def __init__(self, *, variable: str, value: str, wanted: str) -> None:
        self.variable, self.value, self.wanted = variable, value, wanted
        super().__init__(
            f"{variable}={value!r} cannot be read, wanted {wanted}.", variable=variable, value=value, wanted=wanted
        )


class MalformedSettings(ConfigurationError):
    """A settings file that cannot be read, or a key in it that nobody knows."""

    def __init__(self, *, file: str, problem: str, fix: str) -> None:
        self.file, self.problem, self.fix = file, problem, fix
        super().__init__(f"{file}: {problem}. {fix}", file=file, problem=problem, fix=fix)


def _op(op: str | None) -> str:
    """Return the words that name an op, or all of them."""
    return "any op" if op is None else f"op {op!r}"


def _by(layer: str | None) -> str:
    """Return the words that name the layer which brought a name, or nothing."""
    return f"{layer}: " if layer else ""
