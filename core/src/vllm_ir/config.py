"""What a program configures: which providers to try first, for any op that is registered.

An op needs no entry here to be configurable; names are checked where the configuration takes effect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vllm_ir import runtime
from vllm_ir.errors import MalformedPriority, UnknownOp
from vllm_ir.preferences import EVERY_OP
from vllm_ir.priority import FLAG, Layer, Wish, parse_arguments, parse_text, read_providers
from vllm_ir.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Sequence


class IrOpPriorityConfig(Mapping[str, "tuple[str, ...]"]):
    """Provider names in order, by op; `config.rms_norm` and `config["rms_norm"]` are the same.

    Args:
        lists: by op a list of names, or one text "a,b".
        more: the same as keywords.

    Raises:
        MalformedPriority: a value is neither.
    """

    __slots__ = ("_for_every_op", "_lists")

    def __init__(self, lists: Mapping[str, str | Sequence[str]] | None = None, /, **more: str | Sequence[str]) -> None:
        if not isinstance(lists, (Mapping, type(None))):
            raise MalformedPriority(text=repr(lists), reason="wanted a mapping from ops to provider names")
        given = {**(lists or {}), **more}
        self._lists: Mapping[str, tuple[str, ...]] = MappingProxyType(
            {op: read_providers(names) for op, names in given.items()}
        )
        self._for_every_op: tuple[str, ...] = ()

    @classmethod
    def with_default(cls, default: str | Sequence[str], /, **lists: str | Sequence[str]) -> IrOpPriorityConfig:
        """Return a configuration for every op, also ones registered later; a provider is left out where it lacks one.

        Args:
            default: names for all ops that `lists` does not name.
            lists: names by op.

        Raises:
            MalformedPriority: a value is neither a list of names nor a text.
        """
        made = cls(lists)
        made._for_every_op = read_providers(default)
        return made

    @classmethod
    def from_text(cls, text: str) -> IrOpPriorityConfig:
        """Return what "rms_norm=fast,native;silu_and_mul=fast" says.

        Raises:
            MalformedPriority: it cannot be read.
        """
        return cls(parse_text(text))

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> tuple[IrOpPriorityConfig, list[str]]:
        """Return what `--ir-op-priority.<op>=a,b` arguments say, and the arguments that are left.

        Args:
            arguments: a command line without the program's name.

        Raises:
            MalformedPriority: an op or a list is missing, or one op is given twice.
        """
        lists, rest = parse_arguments(arguments)
        return cls(lists), rest

    @property
    def for_every_op(self) -> tuple[str, ...]:
        """The names that hold for every op without a list of its own."""
        return self._for_every_op

    def apply(self, layer: Layer = Layer.KERNEL_CONFIG) -> None:
        """Set these lists for the whole process, in place of what the layer wanted before; all or nothing.

        Args:
            layer: who asks: COMMAND_LINE for arguments, KERNEL_CONFIG for a program.

        Raises:
            UnknownOp, UnknownProvider, ProviderLacksOp, UnusableProvider: a name that does not exist or cannot run.
        """
        state, source = runtime.current(), layer.label
        state.load()
        with state.lock:
            wishes = {name: Wish(layer, names, source) for name, names in self._lists.items()}
            for name, wish in wishes.items():
                op = state.registry.get(name, f"{FLAG}.{name}" if layer is Layer.COMMAND_LINE else source)
                state.check_wish(op, wish)
            if self._for_every_op:
                state.check_providers(self._for_every_op, source)
                wishes[EVERY_OP] = Wish(layer, self._for_every_op, source, for_every_op=True)
            state.preferences.replace(layer, wishes)
            state.cool()

    @contextlib.contextmanager
    def set_priority(self) -> Iterator[None]:
        """Put these lists first in the current context while open.

        Raises:
            UnknownOp, UnknownProvider, ProviderLacksOp, UnusableProvider: a name that does not exist or cannot run.
        """
        state = runtime.current()
        state.load()
        selection = Selection(state)
        with contextlib.ExitStack() as stack:
            for name, providers in self._lists.items():
                op = state.registry.get(name, "IrOpPriorityConfig")
                stack.enter_context(selection.set_priority(op, providers))
            if self._for_every_op:
                state.check_providers(self._for_every_op, Layer.SET_PRIORITY.label)
                for op in state.registry:
                    if op.name not in self._lists:
                        stack.enter_context(selection.set_priority(op, self._for_every_op, for_every_op=True))
            yield

    def __getitem__(self, op: str) -> tuple[str, ...]:
        """Return the names for an op."""
        if op in self._lists:
            return self._lists[op]
        if self._for_every_op:
            return self._for_every_op
        raise KeyError(op)

    def __getattr__(self, op: str) -> tuple[str, ...]:
        """Return the names for an op; none for one that is not configured.

        Raises:
            UnknownOp: no list names the op and none is registered under that name.
        """
        if op.startswith("_"):
            raise AttributeError(op)
        if op not in self and op not in runtime.current().registry:
            raise UnknownOp(op=op, known=runtime.current().registry.names, layer="IrOpPriorityConfig")
        return self.get(op, ())

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ops that have a list of their own."""
        return iter(self._lists)

    def __len__(self) -> int:
        """Return how many ops have a list of their own."""
        return len(self._lists)

    def __repr__(self) -> str:
        """Return it as it could be written."""
        lists = ", ".join(f"{op}={list(names)!r}" for op, names in self._lists.items())
        if self._for_every_op:
            return f"IrOpPriorityConfig.with_default({list(self._for_every_op)!r}{', ' + lists if lists else ''})"
        return f"IrOpPriorityConfig({lists})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the lists, for worker processes."""
        return (_rebuild, (dict(self._lists), self._for_every_op))


def _rebuild(lists: dict[str, tuple[str, ...]], for_every_op: tuple[str, ...]) -> IrOpPriorityConfig:
    """Return a configuration from its lists."""
    return IrOpPriorityConfig.with_default(for_every_op, **lists) if for_every_op else IrOpPriorityConfig(lists)


class KernelConfig:
    """Kernel selection of a program.

    Args:
        ir_op_priority: provider names by op, as an `IrOpPriorityConfig` or as a mapping.

    Raises:
        MalformedPriority: a list cannot be read.
    """

    __slots__ = ("ir_op_priority",)

    def __init__(self, ir_op_priority: IrOpPriorityConfig | Mapping[str, str | Sequence[str]] | None = None) -> None:
        given = ir_op_priority
        self.ir_op_priority = given if isinstance(given, IrOpPriorityConfig) else IrOpPriorityConfig(given)

    def apply(self) -> None:
        """Set the lists for the whole process; all or nothing.

        Raises:
            UnknownOp, UnknownProvider, ProviderLacksOp, UnusableProvider: a name that does not exist or cannot run.
        """
        self.ir_op_priority.apply(Layer.KERNEL_CONFIG)

    def __repr__(self) -> str:
        """Return it as it could be written."""
        return f"KernelConfig(ir_op_priority={self.ir_op_priority!r})"
