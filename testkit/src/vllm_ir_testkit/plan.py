"""From a provider's name to what can be judged of it on this machine, and why the rest cannot."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm_ir import runtime
from vllm_ir.verdict import Unsupported

from vllm_ir_testkit import known
from vllm_ir_testkit.errors import NoSuchOp, NoSuchProvider
from vllm_ir_testkit.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm_ir import IrOpImpl
    from vllm_ir.plugins.records import DistributionRecord, Failure, ProviderRecord

    from vllm_ir_testkit.known import KnownFailure


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be judged of a provider here.

    Attributes:
        provider: its name.
        subjects: its ops that run here.
        refused: its other ops, with the reason.
        record: what discovery knows of it; None for one that a program registered.
        failure: why nothing of it runs here; None where something may.
        known: the known failures that its package carries.
        platform: the machine's platform.
        machine: the platform with the device's name.
    """

    provider: str
    subjects: tuple[Subject, ...]
    refused: Mapping[str, str]
    record: ProviderRecord | None
    failure: Failure | None
    known: tuple[KnownFailure, ...] = ()
    platform: str = "cpu"
    machine: str = "cpu"


def make_plan(provider: str, ops: Sequence[str] = ()) -> Plan:
    """Return what can be judged of a provider; providers are discovered if nobody has.

    Args:
        provider: its name.
        ops: the ops to judge; all when empty.

    Raises:
        NoSuchProvider: nobody provides that name.
        NoSuchOp: it does not implement an op that was named.
        BadKnownFailures: its known failures cannot be read.
        ConfigurationError: what the operator configured stops discovery.
    """
    state = runtime.current()
    state.load()
    from vllm_ir import ops as _  # noqa: F401 - the core's ops are there also where nothing was discovered

    distribution, record = _record(provider)
    implemented = {op.name: op.impls[provider] for op in state.registry if provider in op.impls}
    if not implemented and record is None:
        raise NoSuchProvider(provider=provider, known=_names())
    names = list(
        dict.fromkeys([*implemented, *(record.ops if record else ()), *dict(record.refused_ops if record else ())])
    )
    for name in ops:
        if name not in names:
            raise NoSuchOp(op=name, provider=provider, known=names)
    platform = state.platform
    device = torch.device(platform.device_type)
    subjects, refused = [], {}
    for name in ops or names:
        impl = implemented.get(name)
        reason = dict(record.refused_ops).get(name) if record else None
        if impl is None:
            refused[name] = reason or (record.reason if record and record.reason else "it is not loaded here")
        elif not state.registry.get(name).has_input_generator:
            refused[name] = "the op has no input generator, so there is nothing to call it with"
        elif impl.supported is not True:
            refused[name] = reason or _why(impl)
        else:
            subjects.append(Subject(state.registry.get(name), impl, device, record))
    return Plan(
        provider=provider,
        subjects=tuple(subjects),
        refused=refused,
        record=record,
        failure=record.failure if record else None,
        known=_shipped(distribution),
        platform=platform.name,
        machine=f"{platform.name}, {platform.device_name}" if platform.devices else platform.name,
    )


def _why(impl: IrOpImpl) -> str:
    """Return why an implementation runs nothing here."""
    return impl.supported.reason if isinstance(impl.supported, Unsupported) else "declared as not supported here"


def _record(provider: str) -> tuple[DistributionRecord | None, ProviderRecord | None]:
    """Return what discovery knows of a provider and its distribution."""
    discovery: Any = runtime.current().discovery.result
    for distribution in discovery.distributions if discovery is not None else ():
        for record in distribution.providers:
            if record.name == provider:
                return distribution, record
        if not distribution.providers and distribution.entry_point == provider and distribution.failure is not None:
            return distribution, _nameless(distribution)
    return None, None


def _nameless(distribution: DistributionRecord) -> ProviderRecord:
    """Return a record for a distribution whose manifest cannot be read, under its entry point's name."""
    from vllm_ir.plugins.records import NOT_USABLE, ProviderRecord

    return ProviderRecord(
        distribution.entry_point, distribution.name, distribution.version, NOT_USABLE, failure=distribution.failure
    )


def _names() -> list[str]:
    """Return every provider that is installed or registered."""
    state = runtime.current()
    discovery: Any = state.discovery.result
    found = [record.name for record in discovery.providers] if discovery is not None else []
    return list(dict.fromkeys([*found, *(name for op in state.registry for name in op.impls)]))


def _shipped(distribution: DistributionRecord | None) -> tuple[KnownFailure, ...]:
    """Return the known failures in the package of a distribution's hooks."""
    if distribution is None:
        return ()
    try:
        spec = find_spec(distribution.module.partition(".")[0])
    except (ImportError, ValueError):
        return ()
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return tuple(
        entry
        for folder in folders
        if (Path(folder) / known.FILE).is_file()
        for entry in known.read(Path(folder) / known.FILE)
    )
