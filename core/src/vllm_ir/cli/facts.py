"""What files tell of this machine's providers and ops, as values that JSON can hold.

How they look on a terminal is left to the verbs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from vllm_ir.cli import output
from vllm_ir.cli.meaning import read_meaning
from vllm_ir.errors import ConfigurationError, LockMismatch, UnknownPlatform
from vllm_ir.platforms import detect, named_platform
from vllm_ir.plugins.admission import in_force
from vllm_ir.plugins.forecast import declared_ops
from vllm_ir.plugins.static import brought_platforms, survey
from vllm_ir.preferences import Preferences

if TYPE_CHECKING:
    from vllm_ir.errors import IrError
    from vllm_ir.platforms import Platform
    from vllm_ir.plugins.admission import Admission
    from vllm_ir.plugins.manifest import OpManifest, ProviderManifest
    from vllm_ir.plugins.records import DistributionRecord, ProviderRecord
    from vllm_ir.plugins.static import Survey


@cache
def preferences() -> Preferences:
    """Return what this process was told, read once, without the runtime that a live answer needs."""
    return Preferences()


def asked_platform(text: str | None) -> Platform:
    """Return the platform of a name, or this machine's where none is named.

    Raises:
        UnknownPlatform: neither the core nor an installed distribution has one of that name.
    """
    if text is None:
        return detect()
    try:
        return named_platform(text)
    except UnknownPlatform:
        return named_platform(text, out_of_tree=brought_platforms())


def survey_here(platform: str | None = None, *, quiet: bool = False, locked: bool = True) -> Survey:
    """Return what is installed, judged for a machine, after any doubts about the operator's lists on stderr.

    Args:
        platform: the name of the machine's platform; this machine when None.
        quiet: leave the doubts to the caller.
        locked: leave out what the lock in force does not name, as a process does.

    Raises:
        UnknownPlatform: no platform has that name.
        UnknownAllowed, UnknownAllowedOp, MalformedSettings, MalformedVariable: the operator's lists cannot be followed.
    """
    asked = asked_platform(platform)
    admission, _ = _lock() if locked else (None, None)
    found = survey(preferences().environment, asked, policy=preferences().policy, admission=admission)
    for doubt in () if quiet else found.doubts:
        output.complain(doubt)
    return found


def broken_lock(found: Survey) -> IrError | None:
    """Return what the lock in force would stop a run with, as far as files tell; None where it would not.

    Args:
        found: what `survey_here` returned.
    """
    admission, error = _lock()
    if admission is None:
        return error
    try:
        admission.verify(found)
    except (ConfigurationError, LockMismatch) as different:
        return different
    return None


def complain_of_a_stop(error: IrError) -> int:
    """Tell what a run would stop with, and return the exit code of a setting that stops one."""
    output.complain(f"a run would stop here. {error}")
    return 2


@cache
def _lock() -> tuple[Admission | None, ConfigurationError | None]:
    """Return the lock in force, or why it cannot be read, which would stop a run, but hides nothing here."""
    try:
        return in_force(preferences()), None
    except ConfigurationError as error:
        return None, error


def describe_op(op: str, found: Survey) -> dict[str, Any]:
    """Return everything that files tell of an op."""
    declarer = declared_ops(found)[op]
    package = next((one.module.partition(".")[0] for one in found.distributions if one.name == declarer), None)
    meaning = read_meaning(op, package) if package else None
    return {
        "name": op,
        "distribution": declarer,
        "signature": meaning.signature if meaning else None,
        "doc": meaning.doc if meaning else None,
        "declared_at": f"{meaning.file}:{meaning.line}" if meaning else None,
        "source": meaning.source if meaning else None,
        "implementations": [
            describe_implementation(one, each, each.manifest, each.manifest.ops[op])
            for one in found.distributions
            for each in one.providers
            if each.manifest and op in each.manifest.ops
        ],
    }


def describe_implementation(
    one: DistributionRecord, each: ProviderRecord, manifest: ProviderManifest, op: OpManifest
) -> dict[str, Any]:
    """Return what a provider's manifest says of one op, and whether it may run here."""
    dtypes = manifest.dtypes_of(op.name)
    return {
        "provider": each.name,
        "distribution": one.name,
        "distribution_version": one.version,
        "state": each.failure.kind if each.failure else each.state,
        "reason": each.reason or dict(each.refused_ops).get(op.name),
        "platforms": [str(need) for need in manifest.platforms_of(op.name).values()],
        "dtypes": None if dtypes is None else list(dtypes),
        "inplace": op.inplace,
        "batch_invariant": op.batch_invariant,
        "kernels": op.kernels or None,
        "default_eager": list(manifest.defaults.eager.get(op.name, ())),
        "default_compiling": list(manifest.defaults.compiling.get(op.name, ())),
    }


def describe_provider(one: DistributionRecord, each: ProviderRecord) -> dict[str, Any]:
    """Return everything that files tell of a provider."""
    ops = each.manifest.ops.values() if each.manifest else ()
    told = one.describe()
    shared = ("location", "module", "summary", "url", "rank", "adds_passes", "defaults_at_run_time")
    return {
        **each.describe(),
        **{key: told[key] for key in shared},
        "requires": {need.library: need.versions for need in each.manifest.requires} if each.manifest else {},
        "shadowed": told["shadowed"],
        "implementations": {
            op.name: describe_implementation(one, each, each.manifest, op) for op in ops if each.manifest
        },
    }
