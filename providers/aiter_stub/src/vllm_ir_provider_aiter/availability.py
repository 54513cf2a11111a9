"""Whether the installed AITER can be called for an op, judged from metadata and sources, and the sentence if not.

The manifest has decided on platform, architecture and version before. AITER is not imported.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path
from typing import Final

from vllm_ir import Unsupported

from vllm_ir_provider_aiter import symbols

DISTRIBUTION: Final = "amd-aiter"
OTHER: Final = "aiter"
"""An unrelated distribution, on asynchronous iterators, that brings a package of the same name."""


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def package() -> Path | None:
    """Return the folder of the package `aiter`, or None where Python finds none."""
    try:
        spec = importlib.util.find_spec("aiter")
    except (ImportError, ValueError):
        return None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(folders[0]) if folders else None


def supported(op: str) -> bool | Unsupported:
    """Tell whether AITER has what an op needs, as this provider calls it.

    Args:
        op: its name, one of `symbols.CALLED`.
    """
    version, other, folder = version_of(DISTRIBUTION), version_of(OTHER), package()
    if version is None or folder is None:
        return Unsupported(f"{DISTRIBUTION} is not installed: pip install {DISTRIBUTION}")
    if other is not None:
        return Unsupported(
            f"{DISTRIBUTION} {version} and {OTHER} {other}, an unrelated package, are both installed and write over"
            f" each other's files: uninstall both, then install {DISTRIBUTION}"
        )
    return _brings(op, version, folder)


def _brings(op: str, version: str, folder: Path) -> bool | Unsupported:
    """Tell whether the sources of an AITER have the function of an op, as it is called, and hand it on."""
    called = symbols.CALLED[op]
    try:
        found = symbols.read(folder, called.name)
        exported = found is not None and symbols.exports(folder, found)
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError) as error:
        cause = str(error) or type(error).__name__
        return Unsupported(f"the sources of {DISTRIBUTION} {version} cannot be read: {cause}")
    if found is None:
        return Unsupported(f"{DISTRIBUTION} {version} has no function {called.name}; version {symbols.READ} has it")
    if not found.takes(called):
        return Unsupported(
            f"{DISTRIBUTION} {version} has {found}, and this provider calls {called}, as in version {symbols.READ}"
        )
    if not exported:
        return Unsupported(
            f"{DISTRIBUTION} {version} is installed in part: aiter/__init__.py is missing, or does not import"
            f" {found.name} from aiter/ops/{found.module}.py; pip install --force-reinstall --no-deps"
            f" '{DISTRIBUTION}=={version}'"
        )
    return True
