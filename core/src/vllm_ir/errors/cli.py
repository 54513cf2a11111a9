"""What is read when a command line cannot be followed: a verb, a name, or an argument list that is none.

What a verb then finds out about providers and ops is said by the other subjects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors.base import ConfigurationError, ProviderError, did_you_mean, ended, listed

if TYPE_CHECKING:
    from collections.abc import Sequence


class UnknownVerb(ConfigurationError):
    """A verb that neither the core nor an installed distribution has."""

    def __init__(self, *, verb: str, known: Sequence[str]) -> None:
        self.verb, self.known = verb, tuple(known)
        super().__init__(
            f"vllm-ir has no verb {verb!r} (verbs: {', '.join(known)}).{did_you_mean(verb, known)}"
            f"{_where_it_lives(verb)} See vllm-ir --help.",
            verb=verb,
            known=tuple(known),
        )


class DuplicateVerb(ConfigurationError):
    """A verb that two distributions bring, so that neither can be meant."""

    def __init__(self, *, verb: str, distributions: Sequence[str]) -> None:
        self.verb, self.distributions = verb, tuple(distributions)
        super().__init__(
            f"Verb {verb!r} is brought by {len(distributions)} distributions: {listed(distributions)}."
            f" Uninstall all but one, or deny the others: VLLM_IR_PROVIDERS_DISABLED={distributions[-1]}.",
            verb=verb,
            distributions=tuple(distributions),
        )


class DeniedVerb(ConfigurationError):
    """A verb of a distribution that the operator denies."""

    def __init__(self, *, verb: str, distribution: str, variable: str) -> None:
        self.verb, self.distribution, self.variable = verb, distribution, variable
        super().__init__(
            f"Verb {verb!r} comes from {distribution}, which is denied by {variable}, so it was not loaded."
            f" Change {variable} to use it.",
            verb=verb,
            distribution=distribution,
            variable=variable,
        )


class BrokenVerb(ProviderError):
    """A verb whose distribution cannot be imported, or whose entry point is no callable."""

    def __init__(self, *, verb: str, distribution: str, value: str, cause: str) -> None:
        self.verb, self.distribution, self.value, self.cause = verb, distribution, value, cause
        super().__init__(
            f"Verb {verb!r} of {distribution} did not load: {value} raised {cause}."
            f" Reinstall it: pip install --force-reinstall {distribution}.",
            verb=verb,
            distribution=distribution,
            value=value,
            cause=cause,
        )


class LoadingStopped(ConfigurationError):
    """What the operator has to decide before any provider loads, as the process that tried to load told it."""

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        super().__init__(reason, reason=reason)


class UnknownName(ConfigurationError):
    """A name that is neither an op nor a provider."""

    def __init__(self, *, name: str, ops: Sequence[str], providers: Sequence[str]) -> None:
        self.name, self.ops, self.providers = name, tuple(ops), tuple(providers)
        super().__init__(
            f"{name!r} is neither an op (ops: {listed(ops)}) nor a provider (providers: {listed(providers)})."
            f"{did_you_mean(name, [*ops, *providers])}",
            name=name,
            ops=tuple(ops),
            providers=tuple(providers),
        )


class MalformedArguments(ConfigurationError):
    """A description of an op's arguments that cannot be read."""

    def __init__(self, *, text: str, reason: str) -> None:
        self.text, self.reason = text, reason
        super().__init__(
            f"--args {text!r} cannot be read: {ended(reason)}"
            " Write name=value apart by ',', a tensor as dtype[sizes]: x=bf16[4,64],weight=bf16[64],epsilon=1e-6.",
            text=text,
            reason=reason,
        )


class WrongArguments(ConfigurationError):
    """Arguments that can be read and that no call of the op may have, as the call would tell it."""

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        super().__init__(f"--args are no call of the op: {ended(reason)}", reason=reason)


class UnknownArgument(ConfigurationError):
    """An argument that the op does not have."""

    def __init__(self, *, op: str, argument: str, known: Sequence[str]) -> None:
        self.op, self.argument, self.known = op, argument, tuple(known)
        super().__init__(
            f"Op {op!r} has no argument {argument!r} (arguments: {', '.join(known)}).{did_you_mean(argument, known)}",
            op=op,
            argument=argument,
            known=tuple(known),
        )


class MissingArgument(ConfigurationError):
    """Arguments that the op needs and the description leaves out."""

    def __init__(self, *, op: str, missing: Sequence[str]) -> None:
        self.op, self.missing = op, tuple(missing)
        super().__init__(
            f"Op {op!r} also needs {', '.join(missing)}. Add to --args: {','.join(f'{name}=...' for name in missing)}"
            " (none is written none). Without --args the op's own example is taken.",
            op=op,
            missing=tuple(missing),
        )


class TorchMissing(ConfigurationError):
    """A question that only a process with torch can answer, where torch is not installed."""

    def __init__(self, *, verb: str, instead: str) -> None:
        self.verb, self.instead = verb, instead
        super().__init__(
            f"vllm-ir {verb} needs torch, which is not installed here. Install it, or ask `{instead}`.",
            verb=verb,
            instead=instead,
        )


_ELSEWHERE = {
    "run": "vllm-ir-host-transformers",
    "conformance": "vllm-ir-testkit",
    "bench": "vllm-ir-testkit",
    "new": "vllm-ir-testkit",
}


def _where_it_lives(verb: str) -> str:
    """Return which distribution brings a verb that is known but not installed here."""
    home = _ELSEWHERE.get(verb)
    return f" It comes with another distribution: pip install {home}." if home else ""
