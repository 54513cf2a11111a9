"""The names of a new provider: its own, its distribution's, its package's; and why one cannot be had."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import BadName, ReservedName
from vllm_ir.names import check_provider_name
from vllm_ir.plugins.distributions import normalise

from vllm_ir_testkit.errors import BadProviderName

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "vllm-ir-provider-"
"""Begins the name of a provider's distribution, by custom."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a new provider.

    Attributes:
        provider: as users write it in priority lists: demo_vendor.
    """

    provider: str

    @property
    def distribution(self) -> str:
        """The name that pip installs: vllm-ir-provider-demo-vendor."""
        return PREFIX + self.provider.replace("_", "-")

    @property
    def package(self) -> str:
        """The name that Python imports: vllm_ir_provider_demo_vendor."""
        return self.distribution.replace("-", "_")

    @property
    def title(self) -> str:
        """The name in a heading: Demo Vendor."""
        return self.provider.replace("_", " ").title()


def read(text: str, taken: Mapping[str, str]) -> Names:
    """Return the names that follow from what a user wrote, with "-" or "_" and with or without the custom prefix.

    Args:
        text: such as "demo_vendor", "demo-vendor" or "vllm-ir-provider-demo-vendor".
        taken: providers that are installed, each with its distribution.

    Raises:
        BadProviderName: it is not legal, is reserved, makes no name of a distribution, or is taken.
    """
    provider = text.removeprefix(PREFIX).removeprefix(PREFIX.replace("-", "_")).replace("-", "_")
    try:
        names = Names(check_provider_name(provider))
    except ReservedName:
        raise BadProviderName(name=text, reason="vllm-ir keeps that name for itself") from None
    except BadName:
        reason = (
            "a name is lower-case letters, digits and '-' or '_', begins with a letter, and is no keyword of Python"
        )
        raise BadProviderName(name=text, reason=reason) from None
    if not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", provider):
        raise BadProviderName(
            name=text,
            reason="an underscore at either end, or two in a row, makes no name of a distribution",
        )
    if provider in taken:
        raise BadProviderName(name=text, reason=f"{taken[provider]}, which is installed, has it")
    for installed in importlib.metadata.distributions():
        name = installed.metadata["Name"] or ""
        if normalise(name) == names.distribution:
            raise BadProviderName(name=text, reason=f"a distribution {name} is installed")
    if find_spec(names.package) is not None:
        raise BadProviderName(name=text, reason=f"a package {names.package} can be imported already")
    return names


def installed_providers() -> dict[str, str]:
    """Return every installed provider with its distribution, read from files alone."""
    from vllm_ir.cli.facts import survey_here

    return {each.name: each.distribution for each in survey_here().providers}
