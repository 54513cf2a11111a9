"""A process state of its own for a test: fresh at the start, gone at the end, whatever was declared inside.

Tests use it in place of patching; programs have no use for it, because graphs may hold an op that it removes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from vllm_ir import runtime
from vllm_ir.environment import Environment
from vllm_ir.landscape import Landscape
from vllm_ir.observation import Ledger
from vllm_ir.preferences import Preferences
from vllm_ir.registration import forget_op
from vllm_ir.settings import Settings
from vllm_ir.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vllm_ir.once import Once
    from vllm_ir.runtime import Runtime


@contextlib.contextmanager
def isolated(
    variables: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    landscape: Landscape | None = None,
    loader: Callable[[], object] | None = None,
    discovery: Once[Any] | None = None,
) -> Iterator[Runtime]:
    """Give the process a fresh state, and its old one back at the end.

    Args:
        variables: the environment variables that hold; none when None.
        settings: the settings file that holds; none when None.
        landscape: what discovery found; nothing when None.
        loader: what discovers providers at the first selection; nothing when None.
        discovery: what `load_providers` asks; one that discovers what is installed when None.

    Yields:
        the state. Ops that were registered before are there, with their native implementation only.

    Raises:
        MalformedVariable: a variable cannot be read.
    """
    state = runtime.current()
    environment = Environment.read(variables or {})
    kept = list(state.registry)
    fresh = State(
        preferences=Preferences(environment, settings or Settings()),
        landscape=landscape or Landscape(),
        loader=loader or (lambda: None),
    )
    if discovery is not None:
        fresh.discovery = discovery
    with state.lock:
        members = {op.name: op.save() for op in kept}
        for op in kept:
            op.strip()
            state.board(op).ledger = Ledger(op.name)
            state.board(op).forget_scopes()
        state.changes.scopes.clear()  # also those of ops that were forgotten while somebody still held a scope
        before = state.swap(fresh)
    try:
        yield state
    finally:
        with state.lock:
            for op in list(state.registry):
                if op not in kept:
                    forget_op(op)
            for op in kept:
                op.load(members[op.name])
                state.board(op).ledger = Ledger(op.name)
            state.swap(before)
