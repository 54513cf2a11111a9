"""The operator's two lists: which providers may load. A name is a provider's or a distribution's; denying wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import DeniedByPolicy, UnknownAllowed, did_you_mean
from vllm_ir.names import NATIVE
from vllm_ir.plugins.distributions import normalise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_ir.environment import Environment

ALLOW: Final = "VLLM_IR_PROVIDERS"
"""Variable with the allow list."""

DENY: Final = "VLLM_IR_PROVIDERS_DISABLED"
"""Variable with the deny list."""

ALL: Final = "*"
"""What stands for every provider in either list."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What may load.

    Args:
        allowed: the allow list; None allows all, an empty one none.
        denied: the deny list.
    """

    allowed: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()

    @classmethod
    def read(cls, environment: Environment) -> Policy:
        """Return what the variables say."""
        return cls(allowed=environment.providers, denied=environment.disabled)

    def refuse(self, provider: str, distribution: str) -> DeniedByPolicy | None:
        """Return why a provider may not load, or None where it may; `native` always may."""
        if provider == NATIVE:
            return None
        names = {normalise(provider), normalise(distribution), ALL}
        if any(normalise(name) in names for name in self.denied):
            variable, listed, allows = DENY, self.denied, False
        elif self.allowed is not None and not any(normalise(name) in names for name in self.allowed):
            variable, listed, allows = ALLOW, self.allowed, True
        else:
            return None
        return DeniedByPolicy(
            distribution=distribution,
            provider=provider,
            variable=variable,
            value=",".join(listed),
            allows=allows,
        )

    def check(self, known: Iterable[str]) -> None:
        """Refuse an allow list with a name that nothing here has.

        Args:
            known: names of all installed providers and of the distributions that bring them.

        Raises:
            UnknownAllowed: a name is neither.
        """
        names = list(dict.fromkeys(known))
        legal = {normalise(name) for name in names} | {ALL, NATIVE}
        for name in self.allowed or ():
            if normalise(name) not in legal:
                raise UnknownAllowed(variable=ALLOW, name=name, known=names)

    def doubts(self, known: Iterable[str]) -> tuple[str, ...]:
        """Return a sentence for each denied name that nothing has but that is close to one that is there.

        A deny list may well name what is installed elsewhere, so an unknown name alone is no mistake.
        """
        names = list(dict.fromkeys(known))
        legal = {normalise(name) for name in names} | {ALL, NATIVE}
        return tuple(
            f"{DENY} names {name!r}, which nothing here has.{suggestion}"
            for name in self.denied
            if normalise(name) not in legal and (suggestion := did_you_mean(name, names))
        )
