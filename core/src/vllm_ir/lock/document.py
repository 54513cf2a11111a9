"""What a lock says, as frozen values: distributions with their digests, and an order for each op on each platform.

How it is written as a file is left to `lock_file`, where it comes from to `taking`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

VERSION: Final = 1
"""The version of the file that this core writes, and the newest that it reads."""

FILE: Final = "vllm-ir.lock"
"""Name of the file in the working folder, where no other is named."""

MODES: Final = {False: "eager", True: "compiling"}
"""What the two modes are called, by "does Inductor compile"."""


@dataclass(frozen=True, slots=True)
class Place:
    """One place in an order.

    Args:
        provider: who stands there.
        layer: who put it there, in words.
    """

    provider: str
    layer: str


Orders = Mapping[str, tuple[Place, ...]]
"""The places of each op, up to the one that takes every call."""


@dataclass(frozen=True, slots=True)
class LockedDistribution:
    """One distribution.

    Args:
        name: as installers compare it.
        version: its version.
        manifest: digest of its manifest, "sha256:" and hexadecimal.
        providers: what it brings.
        digest: of its files, likewise; None where it was installed editable.
    """

    name: str
    version: str
    manifest: str
    providers: tuple[str, ...]
    digest: str | None


@dataclass(frozen=True, slots=True)
class LockedPlatform:
    """One platform and what runs on it.

    Args:
        name: such as "cuda".
        architectures: of its devices, each once: capabilities or AMD's names; empty where there is no such thing.
        eager: the orders of calls.
        compiling: the orders of graphs that Inductor compiles.
        recorded: facts that may differ: driver and toolkit, where they are known.
    """

    name: str
    architectures: tuple[str, ...]
    eager: Orders
    compiling: Orders
    recorded: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The name with its architectures, as `--platform` takes it where there is one of them."""
        return f"{self.name}:{','.join(self.architectures)}" if self.architectures else self.name

    def orders(self, *, compiling: bool) -> Orders:
        """Return the orders of one mode."""
        return self.compiling if compiling else self.eager


@dataclass(frozen=True, slots=True)
class Lock:
    """All that a lock says.

    Args:
        core: version of the core.
        provider_api: versions of the hooks that it calls.
        distributions: by name.
        platforms: by key.
        recorded: facts that may differ: Python, and torch where it is installed.
    """

    core: str
    provider_api: tuple[str, ...]
    distributions: Mapping[str, LockedDistribution]
    platforms: Mapping[str, LockedPlatform]
    recorded: Mapping[str, str] = field(default_factory=dict)
