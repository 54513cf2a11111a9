"""What discovery found on this machine, as one frozen value: platform, default orders, who is unusable and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_ir.graphs import BasePass
    from vllm_ir.platforms import Platform

Defaults = Mapping[str, tuple[str, ...]]
"""Provider names in order, by op."""


@dataclass(frozen=True, slots=True)
class Pins:
    """The orders that a lock holds a process to.

    Attributes:
        file: the lock.
        orders: provider names up to `native`, by op and "does Inductor compile".
    """

    file: str
    orders: Mapping[tuple[str, bool], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Landscape:
    """What is here.

    Attributes:
        platform: the machine; None before discovery.
        provider_defaults: the orders that distributions ask for, by "does Inductor compile".
        platform_defaults: the orders that an out-of-tree platform asks for, likewise.
        unusable: why a provider runs nothing here, by provider.
        distributions: the distribution of every usable provider, `native` included.
        passes: what distributions do to graphs, each with its distribution, in the order in which they run.
        pins: the orders that a lock holds the process to; None without one.
    """

    platform: Platform | None = None
    provider_defaults: Mapping[bool, Defaults] = field(default_factory=dict)
    platform_defaults: Mapping[bool, Defaults] = field(default_factory=dict)
    unusable: Mapping[str, str] = field(default_factory=dict)
    distributions: Mapping[str, str] = field(default_factory=dict)
    passes: tuple[tuple[str, BasePass], ...] = ()
    pins: Pins | None = None
