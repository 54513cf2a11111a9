"""The settings file of a deployment: `vllm-ir.toml`, or `[tool.vllm-ir]` in `pyproject.toml`, of the working folder.

No folder above is searched, so what is in force can be read beside where the process was started. A policy file is of
the same shape; it may lie anywhere, and says what may run, not what goes first. What follows is left to `policy`.
"""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.errors import MalformedSettings, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

POLICY_KEYS: Final = ("allow", "deny", "require", "strict")
"""The keys that a policy file may have."""

KEYS: Final = ("op-priority", *POLICY_KEYS)
"""The keys that a settings file may have."""

BATCH_INVARIANT: Final = "batch_invariant"
"""A property that `require` may ask of every implementation."""

REQUIREMENTS: Final = (BATCH_INVARIANT,)
"""All that `require` may ask for."""

LIMIT: Final = 1 << 20
"""Bytes that a settings file may have: nobody writes so many, and a larger one is some other file."""

_PROJECT: Final = "pyproject.toml"
_TABLE: Final = "vllm-ir"
_NEAR: Final = 0.8
"""How like our table's name another is that was meant for it: `vllm_ir` is, `vllm` is a project's own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a settings file or a policy file says.

    Attributes:
        file: the file that was read, or None when there is none.
        op_priority: provider names in order, by op name.
        allow: who may run, as written; None when all may.
        deny: who may not, as written.
        strict: raise where a refusal would fall back.
        require: what every implementation must be declared to be.
        doubts: sentences about what is no error but looks like a mistake.
    """

    file: Path | None = None
    op_priority: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    strict: bool = False
    require: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

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
            return _Table(own, _load(own)).settings(KEYS)
        project = folder / _PROJECT
        if project.is_file():
            content = _load(project)
            tool = content.get("tool", {})
            if isinstance(tool, dict) and "vllm-ir" in tool:
                return _Table(project, tool["vllm-ir"]).settings(KEYS)
            return cls(
                doubts=tuple(
                    f"{project}: table [{name}] means nothing to vllm-ir and is ignored. Did you mean [tool.vllm-ir]?"
                    for name in _misspelt(content)
                )
            )
        return cls()

    @classmethod
    def read_policy(cls, file: Path) -> Settings:
        """Return what a policy file says: a TOML file with the keys of a policy, or a `pyproject.toml`.

        Args:
            file: its path.

        Raises:
            MalformedSettings: it is not there, is no TOML, or has a key or a value that means nothing.
        """
        content = _load(file)
        if file.name != _PROJECT:
            return _Table(file, content).settings(POLICY_KEYS)
        tool = content.get("tool", {})
        if not isinstance(tool, dict) or "vllm-ir" not in tool:
            near = next((f"[{name}]" for name in _misspelt(content)), None)
            raise MalformedSettings(
                file=str(file),
                problem="it has no table [tool.vllm-ir], so that nothing would be enforced",
                fix=f"{f'Rename {near}' if near else 'Write the table'}, or unset VLLM_IR_POLICY.",
            )
        return _Table(file, tool["vllm-ir"]).settings(POLICY_KEYS)


def _misspelt(content: Mapping[str, Any]) -> list[str]:
    """Return the tables of a project that nearly have the name of ours, or have it in the wrong place."""
    tool = content.get("tool", {})
    below = tool if isinstance(tool, dict) else {}
    return [
        f"{before}{name}"
        for before, tables in (("tool.", below), ("", content))
        for name, table in tables.items()
        if isinstance(table, dict) and difflib.SequenceMatcher(None, name.lower(), _TABLE).ratio() >= _NEAR
    ]


def _load(file: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        regular, content = file.is_file(), b""
        if regular or not file.exists():
            with file.open("rb") as stream:
                content = stream.read(LIMIT + 1)
    except OSError as error:
        problem = f"it cannot be read: {error.strerror or error}"
        raise MalformedSettings(file=str(file), problem=problem, fix="Mend the file, or its path.") from error
    if not regular:
        raise MalformedSettings(file=str(file), problem="it is no regular file", fix="Name a TOML file.")
    if len(content) > LIMIT:
        problem = f"it has more than {LIMIT} bytes"
        raise MalformedSettings(file=str(file), problem=problem, fix="Shorten it, or name the file that was meant.")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        problem = f"it cannot be read: {' '.join(str(error).split()).rstrip('.')}"
        raise MalformedSettings(file=str(file), problem=problem, fix="Mend the file.") from error


@dataclass(frozen=True, slots=True)
class _Table:
    """A table that is being checked.

    Attributes:
        file: where it stands.
        table: what TOML holds there.
    """

    file: Path
    table: Any

    def settings(self, keys: Sequence[str]) -> Settings:
        """Return the settings, or raise for the first thing that means nothing.

        Args:
            keys: those that the table may have.
        """
        if not isinstance(self.table, dict):
            raise self._error(f"vllm-ir is {self.table!r}, wanted a table", "Write [tool.vllm-ir].")
        for key in self.table:
            if key not in keys:
                raise self._unknown(key, keys)
        priority = self.table.get("op-priority", {})
        if not isinstance(priority, dict):
            raise self._error(f"op-priority is {priority!r}, wanted a table", "Write [op-priority].")
        strict = self.table.get("strict", False)
        if not isinstance(strict, bool):
            raise self._error(f"strict is {strict!r}, wanted true or false", "Write strict = true.")
        return Settings(
            file=self.file,
            op_priority={
                op: self._names(f"op-priority.{op}", value, "provider names", f'{op} = ["native"]')
                for op, value in priority.items()
            },
            allow=self._rules("allow") if "allow" in self.table else None,
            deny=self._rules("deny"),
            strict=strict,
            require=self._requirements(),
        )

    def _rules(self, key: str) -> tuple[str, ...]:
        """Return the entries of an allow or deny list."""
        example = f'{key} = ["a_provider", "another:rms_norm"]'
        return self._names(key, self.table.get(key, []), "providers, or of providers with an op", example)

    def _requirements(self) -> tuple[str, ...]:
        """Return what is required."""
        example = f'require = ["{BATCH_INVARIANT}"]'
        required = self._names("require", self.table.get("require", []), "properties", example)
        for name in required:
            if name not in REQUIREMENTS:
                raise self._error(
                    f"require has {name!r}, which is no property (properties: {', '.join(REQUIREMENTS)})",
                    f"{did_you_mean(name, REQUIREMENTS)} Write {example}.".strip(),
                )
        return required

    def _names(self, key: str, value: object, what: str, example: str) -> tuple[str, ...]:
        """Return names given as a list or as one comma-separated text."""
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self._error(f"{key} is {value!r}, wanted a list of {what}", f"Write {example}.")
        return tuple(dict.fromkeys(name.strip() for name in value if name.strip()))

    def _unknown(self, key: str, keys: Sequence[str]) -> MalformedSettings:
        """Return the error for a key that means nothing here."""
        if key in KEYS:
            return self._error(
                f"key {key!r} means nothing in a policy file, which says what may run and not what goes first"
                f" (keys: {', '.join(keys)})",
                "Write it in vllm-ir.toml of the working folder.",
            )
        return self._error(
            f"key {key!r} means nothing (keys: {', '.join(keys)})",
            f"{did_you_mean(key, keys)} Rename or remove it.".strip(),
        )

    def _error(self, problem: str, fix: str) -> MalformedSettings:
        """Return the error for something in this file."""
        return MalformedSettings(file=str(self.file), problem=problem, fix=fix)
