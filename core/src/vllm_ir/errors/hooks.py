"""What an author of hooks reads when they are misspelt, return the wrong thing or fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vllm_ir.errors.base import ProviderError, did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Sequence


class BadHookResult(ProviderError):
    """A hook that returned what its contract does not allow."""

    kind: ClassVar[str] = "bad declaration"

    def __init__(self, *, distribution: str, hook: str, got: str, wanted: str) -> None:
        self.distribution, self.hook, self.got, self.wanted = distribution, hook, got, wanted
        super().__init__(
            f"Distribution {distribution}: hook {hook} returned {got}, wanted {wanted}.",
            distribution=distribution,
            hook=hook,
            got=got,
            wanted=wanted,
        )


class BadPass(ProviderError):
    """A hook for graph passes that returned what cannot be one."""

    kind: ClassVar[str] = "bad pass"

    def __init__(self, *, distribution: str, got: str) -> None:
        self.distribution, self.got = distribution, got
        super().__init__(
            f"Distribution {distribution}: hook vllm_ir_passes returned {got}. Wanted a list of objects of classes"
            " derived from vllm_ir.compile.passes.GraphPass, each with a name of its own.",
            distribution=distribution,
            got=got,
        )


class BadDeclaration(ProviderError):
    """A declaration that the core refuses: its sentence tells why."""

    kind: ClassVar[str] = "bad declaration"

    def __init__(self, *, distribution: str, reason: str) -> None:
        self.distribution, self.reason = distribution, reason
        super().__init__(
            f"Distribution {distribution}: {reason.rstrip('.')}. Nothing of it was registered.",
            distribution=distribution,
            reason=reason,
        )


class BadHookSignature(ProviderError):
    """A hook that asks for arguments its specification does not have."""

    kind: ClassVar[str] = "bad declaration"

    def __init__(self, *, distribution: str, reason: str) -> None:
        self.distribution, self.reason = distribution, reason
        super().__init__(
            f"Distribution {distribution}: {reason.rstrip('.')}. Take only arguments of the hook's specification.",
            distribution=distribution,
            reason=reason,
        )


class MisspeltHook(ProviderError):
    """A function marked or named as a hook that no specification knows."""

    kind: ClassVar[str] = "misspelt hook"

    def __init__(self, *, distribution: str, hook: str, known: Sequence[str]) -> None:
        self.distribution, self.hook, self.known = distribution, hook, tuple(known)
        super().__init__(
            f"Distribution {distribution}: {hook!r} is no hook (hooks: {listed(known)}).{did_you_mean(hook, known)}"
            " The author renames it.",
            distribution=distribution,
            hook=hook,
            known=tuple(known),
        )


class UnmarkedHook(ProviderError):
    """A function named as a hook without the marker that makes it one."""

    kind: ClassVar[str] = "misspelt hook"

    def __init__(self, *, distribution: str, hook: str) -> None:
        self.distribution, self.hook = distribution, hook
        super().__init__(
            f"Distribution {distribution}: {hook!r} is named as a hook but would never be called."
            " The author puts @vllm_ir.hookimpl before it.",
            distribution=distribution,
            hook=hook,
        )


class WarmUpFailed(ProviderError):
    """A provider whose warm-up raised, in strict mode."""

    kind: ClassVar[str] = "failed warm-up"

    def __init__(self, *, distribution: str, cause: str) -> None:
        self.distribution, self.cause = distribution, cause
        super().__init__(
            f"Distribution {distribution}: warm-up raised {cause}. A first call would meet the same; deny the"
            " distribution, or mend it.",
            distribution=distribution,
            cause=cause,
        )
