"""An immutable order of providers, each with the layer that put it there, and how such orders are written.

How a provider runs, and whether it can, is not known here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import MalformedPriority
from vllm_ir.names import NATIVE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FLAG: Final = "--ir-op-priority"
"""The command-line flag, followed by a dot and the op's name."""


class Layer(enum.IntEnum):
    """Who put a provider into the list; a later layer goes before an earlier one."""

    BUILT_IN = 0
    PROVIDER_DEFAULT = 1
    PLATFORM_DEFAULT = 2
    FILE = 3
    ENVIRONMENT = 4
    COMMAND_LINE = 5
    KERNEL_CONFIG = 6
    SET_DEFAULT = 7
    SET_PRIORITY = 8

    @property
    def label(self) -> str:
        """The layer in words that a user knows."""
        return _LABELS[self]

    @property
    def named(self) -> bool:
        """Whether a user named the provider, so that it must run or raise."""
        return self >= Layer.FILE


_LABELS: Final = {
    Layer.BUILT_IN: "built-in",
    Layer.PROVIDER_DEFAULT: "provider default",
    Layer.PLATFORM_DEFAULT: "platform default",
    Layer.FILE: "settings file",
    Layer.ENVIRONMENT: "VLLM_IR_OP_PRIORITY",
    Layer.COMMAND_LINE: FLAG,
    Layer.KERNEL_CONFIG: "KernelConfig",
    Layer.SET_DEFAULT: "set_default",
    Layer.SET_PRIORITY: "set_priority",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One place in an order.

    Attributes:
        provider: the provider's name.
        layer: who put it there.
        source: the layer in words, with the file's name where a file said it.
        required: it was named for this very op, so that it must run or raise.
    """

    provider: str
    layer: Layer
    source: str
    required: bool


@dataclass(frozen=True, slots=True)
class Wish:
    """What one layer wants for one op.

    Attributes:
        layer: the layer.
        providers: provider names in order.
        source: the layer in words; the layer's own label when empty.
        for_every_op: the list was given for all ops at once, so a provider that lacks this op is dropped.
    """

    layer: Layer
    providers: tuple[str, ...]
    source: str = ""
    for_every_op: bool = False

    def entries(self) -> tuple[Entry, ...]:
        """Return the places that this wish asks for."""
        required = self.layer.named and not self.for_every_op
        source = self.source or self.layer.label
        return tuple(Entry(provider, self.layer, source, required) for provider in self.providers)


@dataclass(frozen=True, slots=True)
class Priority:
    """Providers in order, each once, at the place that the highest layer gave it.

    Attributes:
        entries: the places in order.
    """

    entries: tuple[Entry, ...]

    @property
    def providers(self) -> tuple[str, ...]:
        """The provider names in order."""
        return tuple(entry.provider for entry in self.entries)


def merge(wishes: Iterable[Wish]) -> Priority:
    """Return the order that follows from all layers: later layers first, `native` last of all.

    Args:
        wishes: in any order; within one layer the later wish goes first, as an inner scope does.
    """
    ordered = sorted(enumerate(wishes), key=lambda pair: (pair[1].layer, pair[0]), reverse=True)
    entries: dict[str, Entry] = {}
    for _, wish in ordered:
        for entry in wish.entries():
            entries.setdefault(entry.provider, entry)
    built_in = Wish(Layer.BUILT_IN, (NATIVE,)).entries()[0]
    entries.setdefault(NATIVE, built_in)
    return Priority(tuple(entries.values()))


def read_providers(value: str | Sequence[str], layer: str | None = None) -> tuple[str, ...]:
    """Return provider names from a list, or from a text with commas; each once, an empty list means `native`.

    Args:
        value: "a, b" or ["a", "b"].
        layer: who wrote it, for the error.

    Raises:
        MalformedPriority: it is neither a text nor a sequence of texts.
    """
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise MalformedPriority(text=repr(value), reason="wanted provider names", layer=layer)
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip())) or (NATIVE,)


def parse_text(text: str, layer: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return the lists written as "rms_norm=fast,native;silu_and_mul=fast".

    Args:
        text: ops apart by ';', each with '=' and its providers apart by ','.
        layer: who wrote it, for the error.

    Raises:
        MalformedPriority: a part has no '=', no op, or an op is given twice.
    """
    result: dict[str, tuple[str, ...]] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        op, equals, providers = part.partition("=")
        op = op.strip()
        if not equals or not op:
            lacks = "no op before '='" if equals else "no '='"
            raise MalformedPriority(text=text, reason=f"{part.strip()!r} has {lacks}", layer=layer)
        if op in result:
            raise MalformedPriority(text=text, reason=f"op {op!r} is given twice", layer=layer)
        result[op] = read_providers(providers, layer)
    return result


def parse_arguments(arguments: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the lists given by `--ir-op-priority.<op>=a,b` or `--ir-op-priority.<op> a,b`, and all other arguments.

    Args:
        arguments: a command line without the program's name; what follows `--` is not looked at.

    Returns:
        provider names by op, and the arguments that are not about priorities, in their order.

    Raises:
        MalformedPriority: the op or the list is missing, or one op is given twice.
    """
    result: dict[str, tuple[str, ...]] = {}
    rest: list[str] = []
    pending = list(arguments)
    while pending:
        argument = pending.pop(0)
        if argument == "--":
            return result, [*rest, argument, *pending]
        head, equals, value = argument.partition("=")
        # vLLM's parser takes underscores for dashes in a flag, so users write both.
        flag, dot, op = head.partition(".")
        if flag.replace("_", "-") != FLAG:
            rest.append(argument)
            continue
        if not dot or not op:
            raise MalformedPriority(text=argument, reason=f"wanted {FLAG}.<op>=<providers>", layer=FLAG)
        if not equals:
            if not pending or pending[0].startswith("--"):
                raise MalformedPriority(text=argument, reason="the providers are missing", layer=FLAG)
            value = pending.pop(0)
        if op in result:
            raise MalformedPriority(text=argument, reason=f"op {op!r} is given twice", layer=FLAG)
        result[op] = read_providers(value, FLAG)
    return result, rest
