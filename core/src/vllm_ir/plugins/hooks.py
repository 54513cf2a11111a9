"""The hooks of one distribution: imported, looked over for misspellings, and called one by one behind a wall.

pluggy's own loader stops at the first broken distribution, so each has a manager of its own here.
What a hook's answer must agree with is left to `agreement`.
"""

from __future__ import annotations

import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pluggy

from vllm_ir import runtime
from vllm_ir.errors import (
    BadDeclaration,
    BadHookSignature,
    BrokenImport,
    ConfigurationError,
    DeclarationError,
    MissingAttribute,
    MissingModule,
    MisspeltHook,
    ProviderError,
    UnmarkedHook,
)
from vllm_ir.log import logger
from vllm_ir.plugins import hookspecs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vllm_ir.plugins.records import DistributionRecord

PLATFORM: Final = "vllm_ir_platform"
OPS: Final = "vllm_ir_ops"
IMPLEMENTATIONS: Final = "vllm_ir_implementations"
PRIORITIES: Final = "vllm_ir_default_priorities"
PASSES: Final = "vllm_ir_passes"
WARM_UP: Final = "vllm_ir_warm_up"

HOOKS: Final = (PLATFORM, OPS, IMPLEMENTATIONS, PRIORITIES, PASSES, WARM_UP)
"""Names of all hooks."""

LONGEST: Final = 300
"""Letters of what a hook returned that a trace shows."""

_MARK: Final = f"{hookspecs.PROJECT}_impl"  # where pluggy's marker leaves its options


class Hooks:
    """The hooks of one distribution.

    Args:
        distribution: its name.
        plugin: the module, or another object, that has them.

    Raises:
        MisspeltHook: a function is marked or named as a hook that there is not.
        UnmarkedHook: a function is named as a hook and not marked.
        BadHookSignature: a hook takes an argument that its specification does not have.
    """

    def __init__(self, distribution: str, plugin: object) -> None:
        self.distribution = distribution
        _check_names(distribution, plugin)
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        try:
            self._manager.register(plugin, name=distribution)
        except pluggy.PluginValidationError as error:
            raise BadHookSignature(distribution=distribution, reason=" ".join(str(error).split())) from None
        if runtime.current().environment.trace:
            self._manager.add_hookcall_monitoring(self._before, self._after)

    def has(self, hook: str) -> bool:
        """Tell whether the distribution has a hook."""
        return bool(self._caller(hook).get_hookimpls())

    def call(self, hook: str, **arguments: Any) -> Any:
        """Return what a hook returns; None where the distribution has none.

        Raises:
            BadDeclaration: it declared what the core refuses.
            BrokenImport: it raised anything else.
        """
        answers = guard(self.distribution, f"hook {hook}", lambda: self._caller(hook)(**arguments))
        return answers[0] if answers else None

    def _before(self, hook: str, methods: Sequence[object], arguments: Mapping[str, object]) -> None:
        """Log that a hook is called, where there is one."""
        if not methods:
            return
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        logger.debug("%s: hook %s(%s)", self.distribution, hook, given)

    def _after(self, outcome: pluggy.Result[Any], hook: str, _methods: object, _arguments: object) -> None:
        """Log what a hook returned or raised."""
        if outcome.exception is not None:
            logger.debug("%s: hook %s raised %r", self.distribution, hook, outcome.exception)
            return
        answers: object = outcome.get_result()
        for answer in answers if isinstance(answers, list) else [answers]:
            logger.debug("%s: hook %s returned %s", self.distribution, hook, _few_words(answer))

    def _caller(self, hook: str) -> pluggy.HookCaller:
        """Return what calls a hook."""
        caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
        return caller


def import_hooks(record: DistributionRecord) -> Hooks:
    """Import the module of a distribution's entry point and return its hooks.

    Raises:
        ProviderError: it cannot be imported, or its hooks cannot be called; one class a kind.
    """
    name, _, attribute = record.module.partition(":")
    plugin: object = guard(record.name, f"import of {name}", lambda: _import(record, name))
    for part in attribute.split(".") if attribute else ():
        if not hasattr(plugin, part):
            raise MissingAttribute(
                distribution=record.name,
                entry_point=record.entry_point,
                module=name,
                attribute=attribute,
                known=[each for each in dir(plugin) if not each.startswith("_")],
            )
        plugin = getattr(plugin, part)
    return Hooks(record.name, plugin)


def guard(distribution: str, where: str, run: Callable[[], Any]) -> Any:
    """Return what foreign code returns.

    Raises:
        BadDeclaration: it declared what the core refuses.
        BrokenImport: it raised anything else, or left the interpreter.
        ProviderError: as it is.
    """
    try:
        return run()
    except ProviderError:
        raise
    except (DeclarationError, ConfigurationError) as error:
        raise BadDeclaration(distribution=distribution, reason=str(error)) from error
    except (Exception, SystemExit) as error:
        message = str(error).strip()
        cause = f"{type(error).__name__}: {message}" if message else type(error).__name__
        raise BrokenImport(distribution=distribution, where=where, cause=cause) from error


def traceback_of(error: BaseException) -> str | None:
    """Return the traceback of the foreign exception behind an error; None where there is none."""
    cause = error.__cause__
    return None if cause is None else "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))


def _few_words(value: object) -> str:
    """Return a value on one line that is not too long for a log."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _import(record: DistributionRecord, name: str) -> object:
    """Import a module, telling a module that is not there from one that misses another."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise MissingModule(distribution=record.name, entry_point=record.entry_point, module=name) from error
        raise


def _check_names(distribution: str, plugin: object) -> None:
    """Refuse functions that would be hooks but for a letter or a marker."""
    for name in dir(plugin):
        value = getattr(plugin, name, None)
        options = getattr(value, _MARK, None) if callable(value) else None
        if isinstance(options, dict):
            known_as = options.get("specname") or name
            if known_as not in HOOKS:
                raise MisspeltHook(distribution=distribution, hook=known_as, known=HOOKS)
        elif name.startswith("vllm_ir_") and _is_own_function(value, plugin):
            if name in HOOKS:
                raise UnmarkedHook(distribution=distribution, hook=name)
            raise MisspeltHook(distribution=distribution, hook=name, known=HOOKS)


def _is_own_function(value: object, plugin: object) -> bool:
    """Tell whether a function was written in the plugin's own module, not imported into it."""
    home = getattr(plugin, "__module__", None) or getattr(plugin, "__name__", None)
    return callable(value) and not isinstance(value, type) and getattr(value, "__module__", None) == home
