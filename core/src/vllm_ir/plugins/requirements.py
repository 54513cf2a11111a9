"""Whether the libraries that a provider requires are installed, without importing them."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_ir.errors import MissingLibrary
from vllm_ir.plugins.walk import normalise, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vllm_ir.plugins.manifest import Requirement


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None where there is none or nothing tells it."""
    key = normalise(distribution)
    first = next((metadata for metadata in walk() if metadata.key == key), None)
    return first.fact("Version") if first else None


def importable(library: str) -> bool:
    """Tell whether Python finds a top-level module, without importing it."""
    if library in sys.modules:
        return sys.modules[library] is not None
    try:
        return importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class Libraries:
    """What is installed; tests say it by hand.

    Args:
        version: returns the version of an installed distribution, or None.
        importable: tells whether a top-level module is found.
    """

    version: Callable[[str], str | None] = installed_version
    importable: Callable[[str], bool] = importable

    def refuse(self, requirements: Iterable[Requirement], provider: str, distribution: str) -> MissingLibrary | None:
        """Return the first requirement that is not met, or None where all are."""
        for requirement in requirements:
            got = self._unmet(requirement)
            if got is not None:
                return MissingLibrary(
                    distribution=distribution,
                    provider=provider,
                    library=requirement.library,
                    wanted=requirement.versions,
                    got=got,
                    install=requirement.distributions[0],
                )
        return None

    def _unmet(self, requirement: Requirement) -> str | None:
        """Return what was found instead of a required library, or None where it is there."""
        for distribution in requirement.distributions:
            version = self.version(distribution)
            if version is None:
                continue
            found = f"{distribution} {version} is installed"
            if not in_range(version, requirement.versions):
                return found
            if not self.importable(requirement.library):
                return f"{found} but Python finds no module {requirement.library!r}"
            return None
        names = " or ".join(requirement.distributions)
        if self.importable(requirement.library):
            return f"{names} is not installed ({self._instead(requirement.library)})"
        return f"{names} is not installed"

    def _instead(self, library: str) -> str:
        """Return what a module is that none of the wanted distributions brought, and that may be anything."""
        version = self.version(library)
        if version is None:
            return f"a module {library!r} of unknown origin is"
        return f"{library} {version} is, another package with a module {library!r}"


def in_range(version: str, versions: str) -> bool:
    """Tell whether an installed version is in a range; pre-releases count, since one that is installed is meant."""
    if not versions:
        return True
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(versions).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
