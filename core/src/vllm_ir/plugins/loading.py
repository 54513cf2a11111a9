"""Loading one distribution, whole or not at all: import, hooks, agreement with the manifest, registration.

Which distributions are loaded, and what follows for the process, is left to `discovery`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from vllm_ir import runtime
from vllm_ir.errors import ProviderError
from vllm_ir.log import logger
from vllm_ir.plugins import agreement, hooks, records
from vllm_ir.plugins.fitting import device_types
from vllm_ir.plugins.records import DistributionRecord, Failure
from vllm_ir.verdict import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vllm_ir.errors import DistributionConflict
    from vllm_ir.graphs import BasePass
    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.platforms import Platform
    from vllm_ir.plugins.hooks import Hooks
    from vllm_ir.plugins.manifest import Manifest
    from vllm_ir.staging import Staging

Priorities = dict[bool, dict[str, tuple[str, ...]]]
"""Default orders by "does Inductor compile", then by op."""


@dataclass(slots=True)
class Session:
    """A distribution while it loads: nothing of it is registered before `finish`.

    Args:
        record: what files tell of it.
        manifest: its manifest.
        staging: what it has declared so far.
        hooks: its hooks, once they are imported.
        passes: what it does to graphs.
        priorities: what its hook for default orders said; None where it has none.
        strangers: what other distributions' modules declared while its own were imported.
    """

    record: DistributionRecord
    manifest: Manifest
    staging: Staging
    hooks: Hooks | None = None
    passes: tuple[BasePass, ...] = ()
    priorities: Priorities | None = None
    strangers: Staging | None = None

    @classmethod
    def begin(cls, record: DistributionRecord, manifest: Manifest) -> Session:
        """Return a session in which nothing has happened yet."""
        from vllm_ir.staging import Staging

        return cls(record, manifest, Staging(record.name))

    @contextlib.contextmanager
    def staged(self) -> Iterator[None]:
        """Hold back whatever is declared inside, also by an import."""
        holder = runtime.current().staging
        token = holder.set(self.staging)
        try:
            yield
        finally:
            holder.reset(token)

    def open(self) -> Hooks:
        """Import the hooks, once.

        Raises:
            ProviderError: they cannot be imported, or are not those that the manifest announces.
        """
        if self.hooks is None:
            with self.staged():
                found = hooks.import_hooks(self.record)
            agreement.check_hooks(found, self.manifest)
            self.hooks = found
        return self.hooks

    def platform(self) -> Platform | None:
        """Return the platform that it brings to this machine, or None.

        Raises:
            ProviderError: it did not load, or returned what is none.
        """
        with self.staged():
            return agreement.read_platform(self.open(), self.manifest)

    def finish(self, record: DistributionRecord, platform: Platform, absent: Mapping[str, str]) -> DistributionRecord:
        """Register everything and return the record of the loaded distribution.

        Args:
            record: the verdict on it for the platform.
            platform: the machine.
            absent: why an op is not there, for ops of distributions that did not load.

        Raises:
            ProviderError: something of it does not fit; nothing of it is registered.
        """
        found = self.open()
        with self.staged():
            ops = agreement.read_ops(found)
            hooks.guard(record.name, "registration of ops", lambda: self.staging.add_ops(ops))
            implementations = agreement.read_implementations(found, platform)
            self.passes = tuple(agreement.read_passes(found, self.manifest, platform))
            if found.has(hooks.PRIORITIES):
                self.priorities = {
                    compiling: agreement.read_priorities(found, self.manifest, platform, compiling=compiling)
                    for compiling in (False, True)
                }
        returned = {id(impl.impl_fn) for impl in implementations}
        self._set_strangers_aside({op.name for op in ops}, returned)
        agreement.check_ops(record.name, self.manifest, {*self.staging.ops, *(op.name for op in ops)})
        declared = self._collect(record, implementations, absent)
        agreement.check_implementations(record, self.manifest, declared, absent)
        self.staging.implementations[:] = _fitted(record, self.manifest, self.staging.implementations, platform)
        hooks.guard(record.name, "registration", self.staging.commit)
        self._register_strangers()
        return _loaded(record, declared, absent)

    def _collect(
        self, record: DistributionRecord, returned: list[IrOpImpl], absent: Mapping[str, str]
    ) -> dict[tuple[str, str], IrOpImpl]:
        """Stage the returned implementations and return all that are declared, by provider and op."""
        registry = runtime.current().registry
        usable = {each.name for each in record.providers if each.usable}
        declared: dict[tuple[str, str], IrOpImpl] = {
            (impl.provider, impl.op_name): impl for impl in self.staging.implementations
        }
        for impl in returned:
            registered = registry.get(impl.op_name).impls if impl.op_name in registry else {}
            wanted = impl.provider in usable and impl.op_name not in absent
            if wanted and registered.get(impl.provider) is not impl:
                hooks.guard(record.name, "registration", partial(self.staging.add_implementations, [impl]))
            declared[impl.provider, impl.op_name] = impl
        return declared

    def _set_strangers_aside(self, ops: set[str], implementations: set[int]) -> None:
        """Take out of the staging what somebody else's module declared when it was imported.

        A provider that imports a host makes the host's module run, and what that declares is not the provider's.
        """
        from vllm_ir.staging import Staging

        package = self.record.module.partition(".")[0]
        mine = self.staging
        other = self.strangers = self.strangers or Staging(None)
        for name, op in list(mine.ops.items()):
            if name not in ops and _package(op.declaration.native) != package:
                other.ops[name] = mine.ops.pop(name)
        for impl in list(mine.implementations):
            if id(impl.impl_fn) not in implementations and _package(impl.impl_fn) != package:
                mine.implementations.remove(impl)
                other.implementations.append(replace(impl, distribution=None))

    def _register_strangers(self) -> None:
        """Register what somebody else's modules declared; they will not be imported again."""
        if self.strangers is None:
            return
        try:
            hooks.guard(self.record.name, "registration", self.strangers.commit)
        except ProviderError as error:
            logger.warning("What was declared while %s was imported is lost: %s", self.record.name, error)

    def abandon(self) -> None:
        """Give up on the distribution; nothing of its own was registered."""
        self._set_strangers_aside(set(), set())
        self._register_strangers()


def _package(function: object) -> str:
    """Return the top-level package of a function."""
    return str(getattr(function, "__module__", "")).partition(".")[0]


def _fitted(
    record: DistributionRecord, manifest: Manifest, implementations: list[IrOpImpl], platform: Platform
) -> list[IrOpImpl]:
    """Return the implementations of usable providers, with the devices and the refusals that the manifest knows."""
    verdicts = {each.name: each for each in record.providers}
    fitted = []
    for impl in implementations:
        verdict = verdicts[impl.provider]
        if not verdict.usable:
            continue
        needs = manifest.providers[impl.provider].platforms_of(impl.op_name)
        reason = dict(verdict.refused_ops).get(impl.op_name)
        devices = device_types(needs, platform)
        fitted.append(
            replace(impl, devices=devices or None, supported=Unsupported(reason) if reason else impl.supported)
        )
    return fitted


def _loaded(
    record: DistributionRecord, declared: Mapping[tuple[str, str], IrOpImpl], absent: Mapping[str, str]
) -> DistributionRecord:
    """Return a record whose usable providers are loaded, with the ops that each of them runs and leaves out here."""
    providers = []
    for each in record.providers:
        if not each.usable:
            providers.append(each)
            continue
        refused = dict(each.refused_ops)
        for op in each.ops:
            impl = declared.get((each.name, op))
            if op in absent:
                refused[op] = absent[op]
            elif impl is not None and impl.supported is not True and op not in refused:
                refused[op] = str(impl.supported or "it was declared as not supported here")
        ops = tuple(op for op in each.ops if (each.name, op) in declared and op not in absent)
        providers.append(replace(each, state=records.LOADED, ops=ops, refused_ops=tuple(refused.items()), note=None))
    return replace(record, providers=tuple(providers))


def failed(record: DistributionRecord, error: ProviderError | DistributionConflict) -> DistributionRecord:
    """Return the record of a distribution that did not load, with the traceback of whatever it raised."""
    return record.fail(Failure.of(error, hooks.traceback_of(error)))
