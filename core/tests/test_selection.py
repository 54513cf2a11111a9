"""Scopes and defaults of one op: nested, left by an exception, by a generator, in any order, in any context."""

from __future__ import annotations

import contextlib
import contextvars
import gc
from typing import TYPE_CHECKING

import pytest
import torch
import vllm_ir
from vllm_ir import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_ir.op import IrOpInplace
    from vllm_ir.runtime import Runtime

NAMES = "abc"


def scoped(x: torch.Tensor) -> torch.Tensor:
    """Return zeros."""
    return torch.zeros_like(x)


@pytest.fixture
def op(state: Runtime) -> IrOpInplace:
    """Give an op with three marked implementations."""
    assert state is not None
    made = vllm_ir.register_op(name="scoped", allow_inplace=True)(scoped)
    for number, name in enumerate(NAMES, 1):
        mark(made, name, number)
    return made


def mark(op: IrOpInplace, name: str, number: int) -> None:
    """Register an implementation whose result is a number."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        """Return the number."""
        return torch.full_like(x, float(number))

    op.register_impl(name)(kernel)


def ran(op: IrOpInplace) -> str:
    """Return the provider that runs, the same by every way of calling."""
    x = torch.ones(1)
    results = {int(call(x).item()) for call in (op, op.torch_op, op.maybe_inplace, op.maybe_inplace.torch_op)}
    assert len(results) == 1
    name: str = ("native", *NAMES)[results.pop()]
    assert op.dispatch(x).provider == op.explain(x).selected == name
    return name


def is_quiet(op: IrOpInplace, state: Runtime) -> bool:
    """Tell whether no scope is left, so that calls do not read the context."""
    gc.collect()
    board = state.board(op)
    return not board.scopes and board.scope.get() is None


def test_set_default_is_replaced_by_the_next(op: IrOpInplace) -> None:
    """The second call does not prepend to the first."""
    op.set_default(["a"])
    assert (ran(op), op.get_priority()) == ("a", ["a"])
    op.set_default("b, native")
    assert [v.provider for v in op.explain().verdicts if v.layer] == ["b", "native"]
    assert ran(op) == "b"
    op.set_default([])
    assert ran(op) == "native"


def test_a_wrong_default_changes_nothing(op: IrOpInplace) -> None:
    """The old one holds."""
    op.set_default("a")
    for wrong in (["b", "nope"], 5, [5]):
        with pytest.raises(errors.ConfigurationError):
            op.set_default(wrong)  # type: ignore[arg-type]
    assert ran(op) == "a"


def test_scopes_nest(op: IrOpInplace, state: Runtime) -> None:
    """The inner goes first, the outer stands behind it, and each comes back when the inner is closed."""
    op.set_default("c")
    with op.set_priority("a"):
        with op.set_priority(["b"]):
            assert ran(op) == "b"
            assert [v.provider for v in op.explain().verdicts] == ["b", "a", "c", "native"]
        assert ran(op) == "a"
        with op.set_priority([]):
            assert ran(op) == "native"
        assert ran(op) == "a"
    assert ran(op) == "c"
    assert is_quiet(op, state)


def test_an_exception_closes_scopes(op: IrOpInplace, state: Runtime) -> None:
    """However deep it comes from."""
    with pytest.raises(ZeroDivisionError), op.set_priority("a"), op.set_priority("b"):
        _ = 1 / 0
    assert ran(op) == "native"
    assert is_quiet(op, state)


def test_a_wrong_scope_does_not_open(op: IrOpInplace, state: Runtime) -> None:
    """The error comes on entering; the scope around it still holds."""
    opened = op.set_priority(["b", "nope"])
    with op.set_priority("a"):
        with pytest.raises(errors.UnknownProvider, match="set_priority: provider 'nope'"), opened:
            pytest.fail("the scope opened")
        assert ran(op) == "a"
    assert is_quiet(op, state)


def test_calling_set_priority_without_with_does_nothing(op: IrOpInplace, state: Runtime) -> None:
    """Only entering opens."""
    op.set_priority("a")
    assert ran(op) == "native"
    assert is_quiet(op, state)


def tokens(op: IrOpInplace, name: str) -> Iterator[str]:
    """Yield who runs, from inside a scope."""
    with op.set_priority(name):
        while True:
            yield ran(op)


def test_generators_that_end_in_another_order(op: IrOpInplace, state: Runtime) -> None:
    """The first to open is the first to close; the other's scope holds on, and nothing comes back afterwards."""
    first, second = tokens(op, "a"), tokens(op, "b")
    assert (next(first), next(second)) == ("a", "b")
    first.close()  # type: ignore[attr-defined]
    assert (ran(op), next(second)) == ("b", "b")
    second.close()  # type: ignore[attr-defined]
    assert ran(op) == "native"
    assert is_quiet(op, state)


def test_scopes_closed_in_a_mixed_order(op: IrOpInplace, state: Runtime) -> None:
    """Whichever of three is closed, the innermost that is open holds."""
    stacks = {name: contextlib.ExitStack() for name in NAMES}
    for name, stack in stacks.items():
        stack.enter_context(op.set_priority(name))
    stacks["b"].close()
    assert ran(op) == "c"
    stacks["c"].close()
    assert ran(op) == "a"
    stacks["a"].close()
    assert ran(op) == "native"
    assert is_quiet(op, state)


def test_a_generator_that_is_closed_in_another_context(op: IrOpInplace, state: Runtime) -> None:
    """The garbage collector may do so; nothing raises, and the other context keeps its own scope."""
    context = contextvars.copy_context()
    generator = tokens(op, "a")
    assert context.run(next, generator) == "a"
    with op.set_priority("b"):
        generator.close()  # type: ignore[attr-defined]
        assert ran(op) == "b"
    assert ran(op) == "native"
    del context, generator
    assert is_quiet(op, state)


def test_a_context_that_is_kept_sees_its_scope(op: IrOpInplace, state: Runtime) -> None:
    """A copy of the context made inside a scope goes on with it; when the copy is gone calls read no context again."""
    with op.set_priority("a"):
        context = contextvars.copy_context()
    assert ran(op) == "native"
    assert len(state.board(op).scopes) == 1
    assert context.run(ran, op) == "a"
    op.set_default("b")
    assert (ran(op), context.run(ran, op)) == ("b", "a")
    del context
    assert is_quiet(op, state)


def test_calls_read_the_context_only_while_a_scope_is_open(op: IrOpInplace, state: Runtime) -> None:
    """Before and after, the implementation itself is what the entry runs."""
    op.set_default("a")
    ran(op)
    board = state.board(op)
    names = [name for name in board.default._globals if name.endswith("chain") and "plain" not in name]
    before = [board.default._globals[name] for name in names]
    assert before == [op.impls["a"].impl_fn]
    with op.set_priority("b"):
        assert [board.default._globals[name] for name in names] != before
    assert [board.default._globals[name] for name in names] == before


def test_a_new_implementation_enters_an_open_scope(op: IrOpInplace, state: Runtime) -> None:
    """A scope that names every op's default takes a provider that is registered while it is open."""
    config = vllm_ir.IrOpPriorityConfig.with_default("later")
    other = vllm_ir.register_op(name="scoped_other")(scoped)
    other.register_impl("later")(scoped)
    with config.set_priority():
        assert ran(op) == "native"
        op.register_impl("later")(op.impls["c"].impl_fn)
        assert op(torch.ones(1)).item() == 3.0
        assert op.dispatch(torch.ones(1)).provider == "later"
    assert is_quiet(op, state)
