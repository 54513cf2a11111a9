"""The environment variables of vllm-ir, read once into one frozen value.

What a variable leads to belongs to the room that acts on it; here is only what is written and whether it can be read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import MalformedVariable, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

KNOWN: Final = (
    "VLLM_IR_CACHE",
    "VLLM_IR_COUNTERS",
    "VLLM_IR_HOST",
    "VLLM_IR_HOST_MODE",
    "VLLM_IR_LOCK",
    "VLLM_IR_LOG",
    "VLLM_IR_OP_PRIORITY",
    "VLLM_IR_POLICY",
    "VLLM_IR_PROVIDERS",
    "VLLM_IR_PROVIDERS_DISABLED",
    "VLLM_IR_STRICT",
    "VLLM_IR_TRACE",
)
"""Every variable that begins with VLLM_IR_ and means something."""

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True)
class Environment:
    """What the variables say.

    Attributes:
        providers: VLLM_IR_PROVIDERS, the allow list; None when unset, which allows all; empty allows none.
        disabled: VLLM_IR_PROVIDERS_DISABLED, the deny list; "*" denies all.
        strict: VLLM_IR_STRICT, raise where a refusal would fall back.
        op_priority: VLLM_IR_OP_PRIORITY as written.
        batch_invariant: VLLM_BATCH_INVARIANT, admit only implementations declared batch-invariant.
        counters: VLLM_IR_COUNTERS, count calls and refusals per provider.
        trace: VLLM_IR_TRACE, log every selection at DEBUG.
        log: the level of VLLM_IR_LOG, else of VLLM_LOGGING_LEVEL; None leaves logging to the host.
        cache: VLLM_IR_CACHE, else "vllm-ir" in the user's cache folder.
        lock: VLLM_IR_LOCK as written, the path of a lock that the process is held to.
        policy: VLLM_IR_POLICY as written, the path of a policy file.
        unknown: variables that begin with VLLM_IR_ and mean nothing.
    """

    providers: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()
    strict: bool = False
    op_priority: str | None = None
    batch_invariant: bool = False
    counters: bool = False
    trace: bool = False
    log: str | None = None
    cache: Path = Path()
    lock: str | None = None
    policy: str | None = None
    unknown: tuple[str, ...] = ()

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """Return what the variables say.

        Args:
            variables: names and values; those of the process when None.

        Raises:
            MalformedVariable: a switch is neither on nor off, a log level is none, or a file has no name.
        """
        env = os.environ if variables is None else variables
        providers = env.get("VLLM_IR_PROVIDERS")
        return cls(
            providers=None if providers is None else split_names(providers),
            disabled=split_names(env.get("VLLM_IR_PROVIDERS_DISABLED", "")),
            strict=_switch(env, "VLLM_IR_STRICT"),
            op_priority=env.get("VLLM_IR_OP_PRIORITY") or None,
            batch_invariant=_switch(env, "VLLM_BATCH_INVARIANT"),
            counters=_switch(env, "VLLM_IR_COUNTERS"),
            trace=_switch(env, "VLLM_IR_TRACE"),
            log=_level(env),
            cache=_cache_folder(env),
            lock=_file(env, "VLLM_IR_LOCK"),
            policy=_file(env, "VLLM_IR_POLICY"),
            unknown=tuple(sorted(name for name in env if name.startswith("VLLM_IR_") and name not in KNOWN)),
        )

    def complaints(self) -> tuple[str, ...]:
        """Return a sentence for every variable that nobody knows."""
        return tuple(
            f"Environment variable {name} means nothing to vllm-ir and is ignored.{did_you_mean(name, KNOWN)}"
            for name in self.unknown
        )


def split_names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list, stripped, empty ones left out, each kept once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _switch(env: Mapping[str, str], variable: str) -> bool:
    """Return whether a variable is on."""
    value = env.get(variable, "")
    word = value.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise MalformedVariable(variable=variable, value=value, wanted="1 or 0")


def _file(env: Mapping[str, str], variable: str) -> str | None:
    """Return the path of a file that holds the process to something, as written; None where the variable is unset.

    An empty one is what a template leaves whose own variable is unset: it must not lift what the file would hold.
    """
    value = env.get(variable)
    if value is not None and not value.strip():
        raise MalformedVariable(
            variable=variable, value=value, wanted="the path of a file; unset it where none is meant"
        )
    return value


def _level(env: Mapping[str, str]) -> str | None:
    """Return the log level asked for, in capitals."""
    value = env.get("VLLM_IR_LOG")
    if value:
        if value.strip().upper() not in _LEVELS:
            raise MalformedVariable(variable="VLLM_IR_LOG", value=value, wanted=f"one of {', '.join(_LEVELS)}")
        return value.strip().upper()
    # vLLM's variable may carry values of its own, so one that says nothing here is not ours to refuse.
    inherited = env.get("VLLM_LOGGING_LEVEL", "").strip().upper()
    return inherited if inherited in _LEVELS else None


def _cache_folder(env: Mapping[str, str]) -> Path:
    """Return the cache folder, which may not exist yet."""
    if env.get("VLLM_IR_CACHE"):
        return Path(env["VLLM_IR_CACHE"]).expanduser()
    base = env.get("XDG_CACHE_HOME")
    # The base-directory specification says that a relative path in this variable is to be ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path(env.get("HOME") or Path.home()) / ".cache"
    return root / "vllm-ir"
