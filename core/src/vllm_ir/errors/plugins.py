"""What is read when a distribution or a provider does not fit this machine, its operator or its neighbours.

Every class says its kind in a few words (`kind`), and whether somebody has to mend something (`fault`) or whether it
is how this machine is and what its operator wants. What is wrong inside a manifest is in `manifest`, what is wrong
with hooks in `hooks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vllm_ir.errors.base import ConfigurationError, DeclarationError, ProviderError, did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Sequence


class BadPlatform(DeclarationError):
    """A platform whose class or constructor leaves out what every platform has."""

    def __init__(self, *, platform: str, field: str, got: str, wanted: str) -> None:
        self.platform, self.field, self.got, self.wanted = platform, field, got, wanted
        super().__init__(
            f"Platform {platform}: {field} is {got}, wanted {wanted}. Set it on the class.",
            platform=platform,
            field=field,
            got=got,
            wanted=wanted,
        )


class UnknownAllowed(ConfigurationError):
    """An allow list that names a provider or distribution that is not installed."""

    def __init__(self, *, variable: str, name: str, known: Sequence[str]) -> None:
        self.variable, self.name, self.known = variable, name, tuple(known)
        super().__init__(
            f"{variable} names {name!r}, which is neither an installed provider nor a distribution that brings one"
            f" (there are: {listed(known)}).{did_you_mean(name, known)} Install it, or take it out of {variable}.",
            variable=variable,
            name=name,
            known=tuple(known),
        )


class UnknownAllowedOp(ConfigurationError):
    """An allow list with an op that no installed distribution knows, so that nothing would be allowed by it."""

    def __init__(self, *, variable: str, rule: str, op: str, known: Sequence[str]) -> None:
        self.variable, self.rule, self.op, self.known = variable, rule, op, tuple(known)
        super().__init__(
            f"{variable} names {rule!r}, and no installed provider has an op {op!r} (ops: {listed(known)})."
            f"{did_you_mean(op, known)} Name an op that there is, or take it out of {variable}.",
            variable=variable,
            rule=rule,
            op=op,
            known=tuple(known),
        )


class DistributionConflict(ConfigurationError):
    """What two distributions claim, so that the operator has to decide."""

    kind: ClassVar[str] = "conflict"
    fault: ClassVar[bool] = True


class DuplicateProvider(DistributionConflict):
    """Two different distributions with one provider name."""

    kind: ClassVar[str] = "duplicate provider"

    def __init__(self, *, provider: str, distributions: Sequence[str], variable: str) -> None:
        self.provider, self.distributions, self.variable = provider, tuple(distributions), variable
        super().__init__(
            f"Provider {provider!r} is brought by {len(distributions)} distributions: {listed(distributions)}."
            f" Uninstall all but one, or deny the others: {variable}={distributions[-1]}.",
            provider=provider,
            distributions=tuple(distributions),
            variable=variable,
        )


class DuplicatePlatform(DistributionConflict):
    """Two distributions that both say this machine is theirs."""

    kind: ClassVar[str] = "duplicate platform"

    def __init__(self, *, platforms: Sequence[str], distributions: Sequence[str], variable: str) -> None:
        self.platforms, self.distributions, self.variable = tuple(platforms), tuple(distributions), variable
        super().__init__(
            f"Distributions {listed(distributions)} each bring a platform for this machine: {listed(platforms)}."
            f" Uninstall all but one, or deny the others: {variable}={distributions[-1]}.",
            platforms=tuple(platforms),
            distributions=tuple(distributions),
            variable=variable,
        )


class MissingLibrary(ProviderError):
    """A library the provider requires is not installed, or not in a version it can use."""

    kind: ClassVar[str] = "missing library"
    fault: ClassVar[bool] = False

    def __init__(self, *, distribution: str, provider: str, library: str, wanted: str, got: str, install: str) -> None:
        self.distribution, self.provider, self.library = distribution, provider, library
        self.wanted, self.got, self.install = wanted, got, install
        super().__init__(
            f"Provider {provider!r} of {distribution} requires {library}{' ' if wanted else ''}{wanted}, and {got}."
            f" Install it: pip install '{install}{wanted}'.",
            distribution=distribution,
            provider=provider,
            library=library,
            wanted=wanted,
            got=got,
            install=install,
        )


class WrongPlatform(ProviderError):
    """A provider whose manifest leaves this machine out."""

    kind: ClassVar[str] = "wrong platform"
    fault: ClassVar[bool] = False

    def __init__(self, *, distribution: str, provider: str, wanted: str, got: str, named: bool = False) -> None:
        self.distribution, self.provider, self.wanted, self.got = distribution, provider, wanted, got
        self.named = named
        asked = "the platform asked about" if named else "this machine"
        super().__init__(
            f"Provider {provider!r} of {distribution} is for {wanted}; {asked} is {got}.",
            distribution=distribution,
            provider=provider,
            wanted=wanted,
            got=got,
            named=named,
        )


class WrongProviderApi(ProviderError):
    """A distribution written against another version of the hooks."""

    kind: ClassVar[str] = "wrong provider API"

    def __init__(self, *, distribution: str, got: str, wanted: Sequence[str]) -> None:
        self.distribution, self.got, self.wanted = distribution, got, tuple(wanted)
        super().__init__(
            f"Distribution {distribution} is written for provider API {got!r}; this vllm-ir has {listed(wanted)}."
            f" Install a version of {distribution} for it, or another vllm-ir.",
            distribution=distribution,
            got=got,
            wanted=tuple(wanted),
        )


class BrokenImport(ProviderError):
    """A module with hooks that cannot be imported, or a hook that raised."""

    kind: ClassVar[str] = "broken import"

    def __init__(self, *, distribution: str, where: str, cause: str) -> None:
        self.distribution, self.where, self.cause = distribution, where, cause
        super().__init__(
            f"Distribution {distribution} did not load: {where} raised {cause}."
            " The traceback is in `vllm-ir list --load`; mend the installation, or deny the distribution.",
            distribution=distribution,
            where=where,
            cause=cause,
        )


class MissingModule(ProviderError):
    """An entry point to a module that is not there."""

    kind: ClassVar[str] = "broken import"

    def __init__(self, *, distribution: str, entry_point: str, module: str) -> None:
        self.distribution, self.entry_point, self.module = distribution, entry_point, module
        super().__init__(
            f"Distribution {distribution}: entry point {entry_point!r} names module {module!r}, which does not exist."
            f" Reinstall the distribution; its author corrects the entry point.",
            distribution=distribution,
            entry_point=entry_point,
            module=module,
        )


class MissingAttribute(ProviderError):
    """An entry point to an attribute that its module has not."""

    kind: ClassVar[str] = "broken import"

    def __init__(
        self, *, distribution: str, entry_point: str, module: str, attribute: str, known: Sequence[str]
    ) -> None:
        self.distribution, self.entry_point, self.module = distribution, entry_point, module
        self.attribute, self.known = attribute, tuple(known)
        super().__init__(
            f"Distribution {distribution}: entry point {entry_point!r} names {attribute!r} in module {module!r}, which"
            f" has no such attribute.{did_you_mean(attribute, known)} The author corrects the entry point.",
            distribution=distribution,
            entry_point=entry_point,
            module=module,
            attribute=attribute,
            known=tuple(known),
        )


class BadEntryPoint(ProviderError):
    """A distribution whose entry points are not what the group asks for."""

    kind: ClassVar[str] = "bad declaration"

    def __init__(self, *, distribution: str, got: str, wanted: str) -> None:
        self.distribution, self.got, self.wanted = distribution, got, wanted
        super().__init__(
            f"Distribution {distribution}: its entry points in group 'vllm_ir.providers' are {got}, wanted {wanted}.",
            distribution=distribution,
            got=got,
            wanted=wanted,
        )


class DeniedByPolicy(ProviderError):
    """A provider that the operator's lists leave out, for one op or for all."""

    kind: ClassVar[str] = "denied by policy"
    fault: ClassVar[bool] = False

    def __init__(
        self,
        *,
        distribution: str | None,
        provider: str,
        variable: str,
        value: str,
        allows: bool,
        file: str | None = None,
        op: str | None = None,
    ) -> None:
        self.distribution, self.provider, self.op = distribution, provider, op
        self.variable, self.value, self.allows, self.file = variable, value, allows, file
        who = f"Provider {provider!r}{f' of {distribution}' if distribution else ''}"
        what = f" for op {op!r}" if op else ""
        super().__init__(
            f"{who} is denied{what}: {self.list} {'does not list it' if allows else 'denies it'}.",
            distribution=distribution,
            provider=provider,
            variable=variable,
            value=value,
            allows=allows,
            file=file,
            op=op,
        )

    @property
    def list(self) -> str:
        """The list that leaves it out, and what is in it, as it is written there."""
        if not self.file:
            return f"{self.variable}={self.value!r}"
        entries = ", ".join(f'"{each}"' for each in self.value.split(",") if each)
        return f"{self.variable} = [{entries}] in {self.file}"

    @property
    def where(self) -> str:
        """The list that leaves it out, by its name."""
        return f"{self.variable} in {self.file}" if self.file else self.variable
