"""What a user of the test kit reads who named what does not exist, or asked for what cannot be made.

All are mistakes of configuration in the sense of `vllm_ir.errors`, so a command line ends with 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors import ConfigurationError, did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Sequence


class UnknownPart(ConfigurationError):
    """A case with a part that does not exist."""

    def __init__(self, *, kind: str, name: str, known: Sequence[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        super().__init__(
            f"A case has no {kind} {name!r} (there are: {listed(known)}).{did_you_mean(name, known)}",
            kind=kind,
            name=name,
            known=tuple(known),
        )


class NoSuchProvider(ConfigurationError):
    """A provider that is not installed."""

    def __init__(self, *, provider: str, known: Sequence[str]) -> None:
        self.provider, self.known = provider, tuple(known)
        super().__init__(
            f"Provider {provider!r} is not installed (installed: {listed(known)}).{did_you_mean(provider, known)}"
            " Install its distribution, or see `vllm-ir list --all`.",
            provider=provider,
            known=tuple(known),
        )


class NoSuchOp(ConfigurationError):
    """An op that was named for a provider that does not implement it."""

    def __init__(self, *, op: str, provider: str, known: Sequence[str]) -> None:
        self.op, self.provider, self.known = op, provider, tuple(known)
        super().__init__(
            f"Provider {provider!r} has no op {op!r} (it implements: {listed(known)}).{did_you_mean(op, known)}",
            op=op,
            provider=provider,
            known=tuple(known),
        )


class NoSuchCheck(ConfigurationError):
    """A check that the kit does not have."""

    def __init__(self, *, check: str, known: Sequence[str]) -> None:
        self.check, self.known = check, tuple(known)
        super().__init__(
            f"There is no check {check!r} (checks: {', '.join(known)}).{did_you_mean(check, known)}",
            check=check,
            known=tuple(known),
        )


class BadKnownFailures(ConfigurationError):
    """A file of known failures that cannot be read, or an entry in it that means nothing."""

    def __init__(self, *, file: str, problem: str, fix: str) -> None:
        self.file, self.problem, self.fix = file, problem, fix
        super().__init__(f"{file}: {problem}. {fix}", file=file, problem=problem, fix=fix)


class RealDiscoveryRefused(ConfigurationError):
    """A unit test that would have loaded what happens to be installed."""

    def __init__(self) -> None:
        super().__init__(
            "A test under TestManager tried to discover the installed providers, so its result would depend on the"
            " machine. Add what it needs: manager.add(...) or manager.load(...)."
        )


class BadBenchRequest(ConfigurationError):
    """An option of a benchmark that cannot be followed."""

    def __init__(self, *, option: str, got: str, wanted: str) -> None:
        self.option, self.got, self.wanted = option, got, wanted
        super().__init__(
            f"{option} {got!r} cannot be followed, wanted {wanted}.", option=option, got=got, wanted=wanted
        )


class NoPlotting(ConfigurationError):
    """A plot was asked for where matplotlib is not installed."""

    def __init__(self, *, file: str) -> None:
        self.file = file
        super().__init__(
            f"--plot {file} needs matplotlib, which is not installed. Run: pip install 'vllm-ir-testkit[plot]'",
            file=file,
        )


class BadProviderName(ConfigurationError):
    """A name that no new provider can have."""

    def __init__(self, *, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(
            f"No provider can be called {name!r}: {reason}. Choose another name.", name=name, reason=reason
        )


class FolderExists(ConfigurationError):
    """A folder that a new provider would overwrite."""

    def __init__(self, *, folder: str) -> None:
        self.folder = folder
        super().__init__(
            f"{folder} exists already, and nothing was written. Remove it, or give another place with --into.",
            folder=folder,
        )


class CannotWrite(ConfigurationError):
    """A place where nothing can be written."""

    def __init__(self, *, folder: str, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(
            f"{folder} cannot be written: {reason.rstrip('.')}. Give another place with --into.",
            folder=folder,
            reason=reason,
        )
