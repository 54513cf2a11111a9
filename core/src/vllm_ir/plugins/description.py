"""One installed distribution as its own files describe it, before anything here judges it."""

from __future__ import annotations

import errno
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import (
    BadEntryPoint,
    ManifestMissing,
    ManifestNotToml,
    MissingModule,
    ProviderError,
    WrongProviderApi,
    listed,
)
from vllm_ir.names import NATIVE, RESERVED
from vllm_ir.plugins import records
from vllm_ir.plugins.bounded_file import check_size, read_bounded
from vllm_ir.plugins.distributions import EntryPoint, Installed, normalise
from vllm_ir.plugins.manifest import FILE, PROVIDER_APIS
from vllm_ir.plugins.manifest_file import read_manifest
from vllm_ir.plugins.records import DistributionRecord, Failure, ProviderRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.plugins.manifest import Manifest, ProviderManifest

CORE: Final = "vllm-ir"
"""The core's own distribution; it brings `native`."""

LIMIT: Final = 1 << 20
"""Bytes that a manifest may hold; one of a dozen ops holds some 2,000."""

_CORE_HOOKS: Final = "vllm_ir.plugins.native"


def with_core(installed: list[Installed]) -> list[Installed]:
    """Put the core first, and add it where it runs from a source tree without being installed."""
    core = [each for each in installed if normalise(each.name) == CORE]
    if not core:
        folder = str(Path(__file__).resolve().parents[2])
        entry_point = EntryPoint(NATIVE, _CORE_HOOKS, None)
        core = [Installed(CORE, "unknown", folder, (entry_point,), (), ())]
    return core + [each for each in installed if each is not core[0]]


def describe(installed: Installed) -> DistributionRecord:
    """Return the record of one distribution as its own files describe it."""
    first = installed.providers[0]
    record = DistributionRecord(
        name=installed.name,
        version=installed.version,
        location=installed.location,
        entry_point=first.name,
        module=first.module if first.attribute is None else f"{first.module}:{first.attribute}",
        shadowed=installed.shadowed,
    )
    try:
        manifest = _read(installed, first)
    except ProviderError as error:
        failure = Failure.of(error)
        nameless = ProviderRecord(first.name, installed.name, installed.version, records.NOT_USABLE, failure=failure)
        return replace(record, failure=failure, providers=(nameless,))
    record = replace(
        record,
        manifest=manifest,
        providers=tuple(_provider(each, installed) for each in manifest.providers.values()),
    )
    if manifest.provider_api not in PROVIDER_APIS:
        wrong = WrongProviderApi(distribution=installed.name, got=manifest.provider_api, wanted=PROVIDER_APIS)
        return record.fail(Failure.of(wrong))
    return record


def _read(installed: Installed, entry_point: EntryPoint) -> Manifest:
    """Return the manifest of a distribution."""
    if len(installed.providers) > 1:
        raise BadEntryPoint(
            distribution=installed.name, got=listed(each.name for each in installed.providers), wanted="exactly one"
        )
    content, file = _manifest_file(installed.name, entry_point)
    is_core = normalise(installed.name) == CORE
    manifest = read_manifest(content, file, reserved=() if is_core else RESERVED)
    if manifest.providers and entry_point.name not in manifest.providers:
        raise BadEntryPoint(
            distribution=installed.name,
            got=repr(entry_point.name),
            wanted=f"named after one of the providers in {FILE}: {listed(manifest.providers)}",
        )
    return manifest


def _manifest_file(distribution: str, entry_point: EntryPoint) -> tuple[bytes, str]:
    """Return bytes and path of the manifest; the package is found, not imported."""
    try:
        spec = importlib.util.find_spec(entry_point.package) if entry_point.package else None
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise MissingModule(distribution=distribution, entry_point=entry_point.name, module=entry_point.module)
    for folder in spec.submodule_search_locations or ():
        path = str(Path(folder, FILE))
        try:
            return _bounded(path, getattr(spec.loader, "get_data", None)), path
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            reason = error.strerror or str(error)
            wanted = f"TOML in UTF-8, at most {LIMIT} bytes"
            raise ManifestNotToml(file=path, key="", got=f"not readable ({reason})", wanted=wanted) from error
    raise ManifestMissing(distribution=distribution, package=entry_point.package, file=FILE)


def _bounded(path: str, get_data: Callable[[str], bytes] | None) -> bytes:
    """Return the bytes of a manifest in a folder, or in an archive that only its loader reads.

    Raises:
        OSError: it cannot be read, is no plain file, or is larger than any manifest.
    """
    if get_data is None or Path(path).parent.is_dir():
        return read_bounded(path, LIMIT)
    try:
        return check_size(get_data(path), LIMIT, path)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise
        raise FileNotFoundError(path) from error  # an archive's loader gives no number


def _provider(manifest: ProviderManifest, installed: Installed) -> ProviderRecord:
    """Return the record of one provider as its manifest describes it."""
    return ProviderRecord(
        name=manifest.name,
        distribution=installed.name,
        version=installed.version,
        state=records.NOT_LOADED,
        ops=tuple(manifest.ops),
        platforms=tuple(map(str, manifest.platforms.values())),
        dtypes=manifest.dtypes,
        manifest=manifest,
    )
