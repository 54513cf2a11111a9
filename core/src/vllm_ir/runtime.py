"""The only mutable state of the process: which ops there are, what discovery found, what users asked for.

Ops ask it who runs; it asks `priority` for the order, `dispatch` for the verdicts and a switchboard for the chains.
"""

from __future__ import annotations

import contextlib
import threading
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from vllm_ir import dispatch, log, orders
from vllm_ir.assembly import Mode
from vllm_ir.changes import Changes
from vllm_ir.platforms import detect
from vllm_ir.registry import Registry
from vllm_ir.state import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vllm_ir.environment import Environment
    from vllm_ir.graphs import Records
    from vllm_ir.landscape import Landscape
    from vllm_ir.once import Once
    from vllm_ir.op import IrOp
    from vllm_ir.platforms import Platform
    from vllm_ir.policy import Policy
    from vllm_ir.preferences import Preferences
    from vllm_ir.priority import Wish
    from vllm_ir.switchboard import Switchboard
    from vllm_ir.wrapping import Wrapping


class Runtime:
    """The state of a process; also the engine that every op asks.

    Attributes:
        registry: ops by name.
        retired: what torch still holds of ops that were forgotten, by name.
        discovery: all that it found, done once; the level above does it and knows its type.
        changes: that something has changed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.registry = Registry()
        self.retired: dict[str, Any] = {}
        self.staging: ContextVar[object] = ContextVar("vllm_ir.staging", default=None)
        self.changes = Changes()
        self._boards: dict[str, Switchboard] = {}
        self._state = State()

    # What the process was started with.

    @property
    def preferences(self) -> Preferences:
        """What users asked for."""
        return self._state.preferences

    @property
    def environment(self) -> Environment:
        """The environment variables, read at the first use."""
        return self.preferences.environment

    @property
    def policy(self) -> Policy:
        """Who may run what, read at the first use."""
        return self.preferences.policy

    @property
    def landscape(self) -> Landscape:
        """What discovery found."""
        return self._state.landscape

    @property
    def discovery(self) -> Once[Any]:
        """All that discovery found, once it has run."""
        return self._state.discovery

    @property
    def wrapping(self) -> Wrapping:
        """Whether tracers see torch ops."""
        return self._state.wrapping

    @property
    def graphs(self) -> Records:
        """What became of compiled graphs."""
        return self._state.graphs

    @property
    def counting(self) -> bool:
        """Whether calls and refusals are counted."""
        return self._state.counting or self.environment.counters

    def count_calls(self) -> None:
        """Count calls and refusals from now on, as a process does that starts with VLLM_IR_COUNTERS=1."""
        with self.lock:
            if not self.counting:
                self._state.counting = True
                self.cool()

    @property
    def mode(self) -> Mode:
        """What holds for every chain."""
        told, platform = self.environment, self.landscape.platform
        device_type = platform.device_type if platform is not None else "cpu"
        return Mode(strict=self.policy.strict, counters=self.counting, trace=told.trace, device_type=device_type)

    @property
    def platform(self) -> Platform:
        """The machine: what discovery settled on, before that what can be seen without it."""
        found = self.landscape.platform
        return detect() if found is None else found

    def swap(self, state: State) -> State:
        """Take another state and return the one until now; ops and switchboards stay, and ask for their order again."""
        with self.lock:
            before, self._state = self._state, state
            self._rewrap()
            self.cool()
            return before

    def load(self) -> None:
        """Discover providers if nobody has."""
        self._state.loader()

    def adopt(self, landscape: Landscape) -> None:
        """Take what discovery found; every op asks for its order again."""
        with self.lock:
            self._state.landscape = landscape
            self.cool()

    # Ops and implementations.

    def board(self, op: IrOp) -> Switchboard:
        """Return the switchboard of an op, made at its registration."""
        return self._boards[op.name]

    def install(self, op: IrOp, board: Switchboard) -> None:
        """Add an op with its switchboard; what it needs of torch is bound already."""
        with self.lock:
            self._boards[op.name] = board
            self.registry.add(op)
            self.wrapping.apply(board)
            self.changes.note()

    def uninstall(self, op: IrOp) -> Switchboard:
        """Forget an op and return its switchboard."""
        with self.lock:
            self.registry.remove(op.name)
            self.changes.note()
            return self._boards.pop(op.name)

    def refresh(self, op: IrOp) -> None:
        """Let an op take a new implementation into its order, also in open scopes."""
        with self.lock:
            self.changes.note()
            board = self._boards.get(op.name)
            if board is None:
                return
            for scope in board.scopes:
                scope.chains = board.make(self.candidates(op, scope.wishes), self.mode)
            board.cool()
            if self.policy.batch_invariant:
                # Whether an op may run unfused is then for the orders of its parts to say.
                for whole in self.registry:
                    if op in whole.declaration.parts:
                        self.refresh(whole)
            if not self.wrapping.always:
                # Dynamo traces into the chain there, and could not trace what connects one.
                self.warm(op)

    def cool(self) -> None:
        """Let every op ask for its order again."""
        for op in self.registry:
            self.refresh(op)

    def wrap(self, *, enable: bool) -> None:
        """Set for the whole process whether tracers see the torch op."""
        if not enable:
            self.load()
        before, self.wrapping.default = self.wrapping.default, enable
        try:
            self._rewrap()
        except BaseException:
            self.wrapping.default = before
            self._rewrap()
            raise

    @contextlib.contextmanager
    def wrap_scope(self, *, enable: bool) -> Iterator[None]:
        """Set in the current context whether tracers see the torch op."""
        if not enable:
            self.load()  # not under the lock, see `warm`
        scope = self.wrapping.open(enable=enable)
        try:
            self._rewrap()
            yield
        finally:
            self.wrapping.close(scope)
            del scope
            self._rewrap()

    def _rewrap(self) -> None:
        """Give every op the call that the wrapping asks for."""
        with self.lock:
            for op in self.registry:
                board = self.board(op)
                if not self.wrapping.always and not board.warmed:
                    self.warm(op)
                self.wrapping.apply(board)

    # Orders.

    def candidates(
        self, op: IrOp, scoped: tuple[Wish, ...] = (), *, compiling: bool = False
    ) -> tuple[dispatch.Candidate, ...]:
        """Return the order of an op and what stands at each place."""
        wishes = [*self.preferences.wishes(op.name, self.landscape, compiling=compiling), *scoped]
        order_of = partial(self.current_order, compiling=compiling)
        return orders.candidates(op, wishes, self.landscape, self.policy, order_of)

    def current_order(self, op: IrOp, *, compiling: bool = False) -> tuple[dispatch.Candidate, ...]:
        """Return the order of an op in the current context."""
        return self.candidates(op, self.current_wishes(op), compiling=compiling)

    def check(self, op: IrOp, candidates: Sequence[dispatch.Candidate]) -> None:
        """Raise for the first place that a user asked for and that can run nothing here."""
        orders.check(op, candidates, self.landscape, self.registry, loading=self.discovery.busy)

    def current_wishes(self, op: IrOp) -> tuple[Wish, ...]:
        """Return what the scopes of the current context want."""
        scope = self.board(op).scope.get()
        return () if scope is None else scope.wishes

    def warm(self, op: IrOp) -> None:
        """Discover providers if nobody has, then connect the op's chains.

        Raises:
            ConfigurationError: a layer names what does not exist or cannot run.
        """
        # Not under the lock: discovery imports foreign code, which may wait for a thread that calls an op.
        self.load()
        with self.lock:
            self.check_names()
            candidates = self.candidates(op)
            self.check(op, candidates)
            orders.check_pinned(op, candidates, self.landscape)
            board = self.board(op)
            board.connect(board.make(candidates, self.mode))
            log.logger.debug("op %s: order %s", op.name, [c.entry.provider for c in candidates])

    def check_names(self) -> None:
        """Raise for an op that a layer names and nobody registered."""
        for op, layer in self.preferences.named_ops():
            self.registry.get(op, layer)

    def check_providers(self, names: Sequence[str], layer: str) -> None:
        """Raise for the first name that can run nothing here, whatever the op."""
        orders.check_providers(names, layer, self.landscape, self.registry, loading=self.discovery.busy)

    def check_wish(self, op: IrOp, wish: Wish) -> None:
        """Raise for the first provider of a wish that can run nothing here."""
        wanted = orders.candidates(op, [wish], self.landscape, self.policy, self.current_order)
        self.check(op, [c for c in wanted if c.entry.layer is wish.layer])


_RUNTIME: Final = Runtime()


def current() -> Runtime:
    """Return the state of this process."""
    return _RUNTIME


def find(name: str) -> IrOp:
    """Return the op of that name.

    Raises:
        UnknownOp: nobody has registered it.
    """
    return _RUNTIME.registry.get(name)
