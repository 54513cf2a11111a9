"""What `vllm_ir_provider.toml` says: the static description of one distribution, as values that check themselves.

Whether it fits this machine is left to `static`; whether the hooks agree with it, to `agreement`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import ManifestContradiction, listed
from vllm_ir.names import RESERVED
from vllm_ir.platforms.platform import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = "vllm_ir_provider.toml"
"""Name of the file; it lies in the top-level package of the entry point's value."""

SCHEMA: Final = 1
"""The newest version of the file's schema that this core reads."""

PROVIDER_APIS: Final = ("1",)
"""Versions of the hooks that this core calls."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file something is said."""

    file: str
    key: str

    def contradiction(self, got: str, wanted: str) -> ManifestContradiction:
        """Return the error for what is said here."""
        return ManifestContradiction(file=self.file, key=self.key, got=got, wanted=wanted)


@dataclass(frozen=True, slots=True)
class Need:
    """What a provider or an op needs of one platform.

    Args:
        name: of the platform.
        minimum: lowest CUDA compute capability, itself included; None for no limit.
        maximum: highest CUDA compute capability, itself included; None for no limit.
        gfx: the AMD architectures it has kernels for; empty for no limit.

    Raises:
        ManifestContradiction: the minimum is above the maximum.
    """

    place: Place = field(repr=False, compare=False)
    name: str
    minimum: tuple[int, int] | None = None
    maximum: tuple[int, int] | None = None
    gfx: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Hold the two ends against each other."""
        if self.minimum and self.maximum and self.minimum > self.maximum:
            raise self.place.contradiction(
                f"minimum {_dotted(self.minimum)}", f"at most maximum {_dotted(self.maximum)}"
            )

    def __str__(self) -> str:
        ends = [
            f"{sign}{_dotted(end)}" for sign, end in ((">=", self.minimum), ("<=", self.maximum)) if end is not None
        ]
        return " ".join([self.name, *ends, *([f"({', '.join(self.gfx)})"] if self.gfx else [])])


@dataclass(frozen=True, slots=True)
class Requirement:
    """A library that a provider imports.

    Args:
        library: the top-level name that Python imports.
        versions: a version range as pip writes it; empty for any version.
        distributions: names under which it can be installed; the first installed one counts.
    """

    library: str
    versions: str
    distributions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpManifest:
    """One op of one provider.

    Args:
        platforms: needs by platform name, to be met besides the provider's own; None to stay with those.
        dtypes: dtypes of the activations; None for those of the provider.
        inplace: as in `implements`.
        batch_invariant: as in `implements`.
        kernels: whose kernels run it, in one line, where those may be another's; empty for the provider's own.
        parts: the ops that it is made of, for the provider that runs those.
    """

    name: str
    platforms: Mapping[str, Need] | None = None
    dtypes: tuple[str, ...] | None = None
    inplace: bool = False
    batch_invariant: bool = False
    kernels: str = ""
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Defaults:
    """The ops, each with its platforms, for which a provider wants to be in the default list.

    Args:
        eager: for calls that run at once.
        compiling: for graphs that are being compiled.
    """

    eager: Mapping[str, tuple[str, ...]]
    compiling: Mapping[str, tuple[str, ...]]

    def of(self, *, compiling: bool) -> Mapping[str, tuple[str, ...]]:
        """Return the table of one mode."""
        return self.compiling if compiling else self.eager


@dataclass(frozen=True, slots=True)
class ProviderManifest:
    """One provider.

    Args:
        name: the name in a priority list.
        platforms: needs by platform name; at least one.
        ops: by name; at least one.
        dtypes: dtypes of the activations; None for no limit.
        requires: libraries it imports.
        defaults: where it wants to be in the default list.

    Raises:
        ManifestContradiction: an op names a platform or a dtype that the provider leaves out, or a default names an
            op or a platform that is not there.
    """

    place: Place = field(repr=False, compare=False)
    name: str
    platforms: Mapping[str, Need]
    ops: Mapping[str, OpManifest]
    dtypes: tuple[str, ...] | None
    requires: tuple[Requirement, ...]
    defaults: Defaults

    def __post_init__(self) -> None:
        """Hold the parts against each other."""
        for op in self.ops.values():
            self._within(f"ops.{op.name}.platforms", op.platforms or (), self.platforms)
            if self.dtypes is not None:
                self._within(f"ops.{op.name}.dtypes", op.dtypes or (), self.dtypes)
        for mode, table in (("eager", self.defaults.eager), ("compiling", self.defaults.compiling)):
            self._within(f"default.{mode}", table, self.ops)
            for op_name, platforms in table.items():
                self._within(f"default.{mode}.{op_name}", platforms, self.platforms_of(op_name))

    def platforms_of(self, op: str) -> Mapping[str, Need]:
        """Return the platforms of one op: its own, or the provider's where it names none."""
        own = self.ops[op].platforms
        return self.platforms if own is None else own

    def dtypes_of(self, op: str) -> tuple[str, ...] | None:
        """Return the dtypes of one op: its own, or the provider's where it names none; None for no limit."""
        own = self.ops[op].dtypes
        return self.dtypes if own is None else own

    def _within(self, key: str, names: Mapping[str, object] | tuple[str, ...], known: object) -> None:
        """Refuse a name that is not among the known ones."""
        for name in names:
            if name not in known:  # type: ignore[operator]
                raise Place(self.place.file, f"{self.place.key}.{key}").contradiction(
                    repr(name),
                    f"one of {listed(known)}",  # type: ignore[arg-type]
                )


@dataclass(frozen=True, slots=True)
class Manifest:
    """One distribution.

    Args:
        provider_api: version of the hooks it is written for.
        summary: one line.
        url: where to read more; empty where there is nothing.
        rank: a higher one comes first in default lists; ties go by name.
        adds_ops: the ops it adds.
        adds_passes: the names of the graph passes it adds.
        platform: name of the out-of-tree platform it brings; None where it brings none.
        defaults_at_run_time: whether a hook decides the default lists, so that this file cannot tell them.
        providers: by name.
        digest: SHA-256 of the file, in hexadecimal.
        reserved: names that no provider may have; the core's own manifest may have one of them.
        expects: where default lists leave a place for providers that other distributions bring, by provider.

    Raises:
        ManifestContradiction: a provider has a reserved name, the platform a built-in one, or what is expected of
            others is brought here.
    """

    file: str
    provider_api: str
    summary: str
    url: str
    rank: int
    adds_ops: tuple[str, ...]
    adds_passes: tuple[str, ...]
    platform: str | None
    defaults_at_run_time: bool
    providers: Mapping[str, ProviderManifest]
    digest: str
    reserved: tuple[str, ...] = RESERVED
    expects: Mapping[str, Defaults] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a name that the core keeps for itself."""
        if self.platform in BUILT_IN:
            raise Place(self.file, "platform").contradiction(repr(self.platform), f"none of {listed(BUILT_IN)}")
        for name in self.providers:
            if name in self.reserved:
                raise Place(self.file, f"providers.{name}").contradiction(
                    f"the name {name!r}", f"another one: {listed(self.reserved)} are reserved"
                )
        for name in self.expects:
            if name in self.providers or name in RESERVED:
                raise Place(self.file, f"expects.{name}").contradiction(
                    repr(name), "the name of a provider that another distribution brings"
                )


def _dotted(capability: tuple[int, int]) -> str:
    """Return a compute capability as it is written."""
    return f"{capability[0]}.{capability[1]}"
