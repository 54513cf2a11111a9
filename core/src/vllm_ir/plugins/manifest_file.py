"""Reading `vllm_ir_provider.toml`: bytes to a `Manifest`, or an error that names file, key, got and wanted."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import ManifestNewer, ManifestNotToml, ManifestWrongValue
from vllm_ir.names import RESERVED
from vllm_ir.plugins import shapes
from vllm_ir.plugins.manifest import (
    SCHEMA,
    Defaults,
    Manifest,
    Need,
    OpManifest,
    Place,
    ProviderManifest,
    Requirement,
)
from vllm_ir.plugins.toml_reader import Cursor

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOP: Final = (
    "schema",
    "provider-api",
    "summary",
    "url",
    "rank",
    "adds-ops",
    "adds-passes",
    "platform",
    "defaults-at-run-time",
    "expects",
    "providers",
)
_MODES: Final = ("eager", "compiling")
_PROVIDER: Final = ("platforms", "dtypes", "inplace", "batch-invariant", "requires", "ops", "default")
_OP: Final = ("platforms", "dtypes", "inplace", "batch-invariant", "kernels", "parts")
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {"cuda": ("minimum", "maximum"), "rocm": ("gfx",)}


def read_manifest(content: bytes, file: str, reserved: tuple[str, ...] = RESERVED) -> Manifest:
    """Return what a manifest says.

    Args:
        content: bytes of the file.
        file: its path, for errors.
        reserved: provider names that it may not use.

    Raises:
        ManifestNewer: its schema is newer than this core.
        ManifestError: anything else in it that does not fit, as a class of its own.
    """
    try:
        top = Cursor(file, tomllib.loads(content.decode("utf-8")))
    # A number of more digits than Python converts is a ValueError of another kind.
    except (ValueError, RecursionError) as error:
        raise ManifestNotToml(file=file, key="", got=f"not readable ({error})", wanted="TOML in UTF-8") from error
    return parse_manifest(top, hashlib.sha256(content).hexdigest(), reserved)


def parse_manifest(top: Cursor, digest: str = "", reserved: tuple[str, ...] = RESERVED) -> Manifest:
    """Return what a parsed manifest says; raises as `read_manifest` does."""
    _check_schema(top)
    items = top.table(_TOP, required=("schema", "provider-api", "summary"))
    providers = items["providers"].mapping(shapes.NAME) if "providers" in items else {}
    expects = items["expects"].mapping(shapes.NAME) if "expects" in items else {}
    return Manifest(
        file=top.file,
        provider_api=items["provider-api"].text(shapes.API),
        summary=items["summary"].text(shapes.SUMMARY),
        url=items["url"].text(shapes.URL) if "url" in items else "",
        rank=items["rank"].integer() if "rank" in items else 0,
        adds_ops=items["adds-ops"].texts(shapes.NAME) if "adds-ops" in items else (),
        adds_passes=items["adds-passes"].texts(shapes.PASS) if "adds-passes" in items else (),
        platform=items["platform"].text(shapes.NAME) if "platform" in items else None,
        defaults_at_run_time=_flag(items, "defaults-at-run-time", default=False),
        providers={name: _provider(name, cursor) for name, cursor in providers.items()},
        digest=digest,
        reserved=reserved,
        expects={name: _defaults(cursor) for name, cursor in expects.items()},
    )


def _check_schema(top: Cursor) -> None:
    """Look at the schema's version before anything else, since a newer one may have other keys."""
    if not isinstance(top.value, dict) or "schema" not in top.value:
        return
    schema = Cursor(top.file, top.value["schema"], "schema")
    version = schema.integer()
    if version > SCHEMA:
        raise ManifestNewer(
            file=top.file, key="schema", got=str(version), wanted=f"at most {SCHEMA}; a newer vllm-ir reads it"
        )
    if version != SCHEMA:
        raise ManifestWrongValue(file=top.file, key="schema", got=str(version), wanted=str(SCHEMA))


def _provider(name: str, cursor: Cursor) -> ProviderManifest:
    """Return one provider."""
    items = cursor.table(_PROVIDER, required=("platforms", "ops"))
    inplace = _flag(items, "inplace", default=False)
    batch_invariant = _flag(items, "batch-invariant", default=False)
    return ProviderManifest(
        place=Place(cursor.file, cursor.key),
        name=name,
        platforms=_needs(items["platforms"]),
        ops={
            op: _op(op, below, inplace=inplace, batch_invariant=batch_invariant)
            for op, below in items["ops"].mapping(shapes.NAME, minimum=1).items()
        },
        dtypes=items["dtypes"].texts(shapes.DTYPE) if "dtypes" in items else None,
        requires=_requires(items["requires"]) if "requires" in items else (),
        defaults=_defaults(items.get("default")),
    )


def _op(name: str, cursor: Cursor, *, inplace: bool, batch_invariant: bool) -> OpManifest:
    """Return one op; what it does not say is as its provider says."""
    items = cursor.table(_OP)
    return OpManifest(
        name=name,
        platforms=_needs(items["platforms"]) if "platforms" in items else None,
        dtypes=items["dtypes"].texts(shapes.DTYPE) if "dtypes" in items else None,
        inplace=_flag(items, "inplace", default=inplace),
        batch_invariant=_flag(items, "batch-invariant", default=batch_invariant),
        kernels=items["kernels"].text(shapes.SUMMARY) if "kernels" in items else "",
        parts=items["parts"].texts(shapes.NAME) if "parts" in items else (),
    )


def _needs(cursor: Cursor) -> dict[str, Need]:
    """Return the needs by platform; only CUDA and ROCm have any that can be written."""
    needs = {}
    for name, below in cursor.mapping(shapes.PLATFORM, minimum=1).items():
        items = below.table(_NEEDS.get(name, ()))
        needs[name] = Need(
            place=Place(below.file, below.key),
            name=name,
            minimum=_capability(items["minimum"]) if "minimum" in items else None,
            maximum=_capability(items["maximum"]) if "maximum" in items else None,
            gfx=items["gfx"].texts(shapes.GFX) if "gfx" in items else (),
        )
    return needs


def _capability(cursor: Cursor) -> tuple[int, int]:
    """Return a compute capability as (major, minor)."""
    major, _, minor = cursor.text(shapes.CAPABILITY).partition(".")
    return int(major), int(minor)


def _requires(cursor: Cursor) -> tuple[Requirement, ...]:
    """Return the required libraries; a bare text is short for a table with only `version`."""
    found = []
    for library, below in cursor.mapping(shapes.LIBRARY).items():
        items = {"version": below} if isinstance(below.value, str) else below.table(("version", "distributions"))
        found.append(
            Requirement(
                library=library,
                versions=items["version"].text(shapes.VERSIONS) if "version" in items else "",
                distributions=items["distributions"].texts(shapes.DISTRIBUTION)
                if "distributions" in items
                else (library,),
            )
        )
    return tuple(found)


def _defaults(cursor: Cursor | None) -> Defaults:
    """Return the ops and platforms by mode."""
    modes = {} if cursor is None else cursor.table(_MODES)
    return Defaults(*(_default(modes.get(mode)) for mode in _MODES))


def _default(cursor: Cursor | None) -> dict[str, tuple[str, ...]]:
    """Return the platforms by op for one mode."""
    if cursor is None:
        return {}
    return {op: below.texts(shapes.PLATFORM) for op, below in cursor.mapping(shapes.NAME).items()}


def _flag(items: Mapping[str, Cursor], name: str, *, default: bool) -> bool:
    """Return a switch, or its default where it is not written."""
    return items[name].flag() if name in items else default
