"""The settings file of a deployment: `vllm-ir.toml`, or `[tool.vllm-ir]` in `pyproject.toml`, of the working folder.

No folder above is searched, so what is in force can be read beside where the process was started.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.errors import MalformedSettings, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEYS: Final = ("op-priority",)
"""The keys that a settings file may have."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the settings file says.

    Attributes:
        file: the file that was read, or None when there is none.
        op_priority: provider names in order, by op name.
    """

    file: Path | None = None
    op_priority: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path | None = None) -> Settings:
        """Return the settings of a folder; `vllm-ir.toml` comes before `pyproject.toml`.

        Args:
            folder: where to look; the working folder when None.

        Raises:
            MalformedSettings: the file is no TOML, or has a key or a value that means nothing.
        """
        folder = Path.cwd() if folder is None else folder
        own = folder / "vllm-ir.toml"
        if own.is_file():
            return _checked(own, _load(own))
        project = folder / "pyproject.toml"
        if project.is_file():
            tool = _load(project).get("tool", {})
            if isinstance(tool, dict) and "vllm-ir" in tool:
                return _checked(project, tool["vllm-ir"])
        return cls()


def _load(file: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise MalformedSettings(file=str(file), problem=f"it cannot be read: {error}", fix="Mend the file.") from error


def _checked(file: Path, table: object) -> Settings:
    """Return the settings in a table, or raise for the first thing that means nothing."""
    if not isinstance(table, dict):
        raise MalformedSettings(
            file=str(file), problem=f"vllm-ir is {table!r}, wanted a table", fix="Write [tool.vllm-ir]."
        )
    for key in table:
        if key not in KEYS:
            raise MalformedSettings(
                file=str(file),
                problem=f"key {key!r} means nothing (keys: {', '.join(KEYS)})",
                fix=f"{did_you_mean(key, KEYS)} Rename or remove it.".strip(),
            )
    priority = table.get("op-priority", {})
    if not isinstance(priority, dict):
        raise MalformedSettings(
            file=str(file), problem=f"op-priority is {priority!r}, wanted a table", fix="Write [op-priority]."
        )
    return Settings(file=file, op_priority={op: _names(file, op, value) for op, value in priority.items()})


def _names(file: Path, op: str, value: object) -> tuple[str, ...]:
    """Return the provider names of one op, given as a list or as one comma-separated text."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise MalformedSettings(
            file=str(file),
            problem=f"op-priority.{op} is {value!r}, wanted a list of provider names",
            fix=f'Write {op} = ["native"].',
        )
    return tuple(dict.fromkeys(name.strip() for name in value if name.strip()))
