"""All or nothing: whatever stops a transaction, neither the registry nor torch has a part of it."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from vllm_ir import errors, ops, staging
from vllm_ir.registration import bind_op
from vllm_ir.staging import transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return zeros in the shape of silu_and_mul's result."""
    return torch.zeros_like(x[..., : x.shape[-1] // 2])


def other_silu(x: torch.Tensor) -> torch.Tensor:
    """Return ones in the shape of silu_and_mul's result."""
    return torch.ones_like(x[..., : x.shape[-1] // 2])


def staged_op(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Return x times a scale."""
    return x * scale


def staged_inplace(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Return x times a scale; this op may donate."""
    return x * scale


def declared(provider: str, op: str = "silu_and_mul", function: Callable[..., Any] = silu) -> vllm_ir.IrOpImpl:
    """Return a declaration."""
    return vllm_ir.implements(op, provider=provider)(function)


def in_torch() -> set[str]:
    """Return what torch has in the namespace of ops."""
    return {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("vllm_ir::")}


def everything(state: Runtime) -> tuple[object, set[str]]:
    """Return every op with its implementations, and what torch has."""
    return {op.name: dict(op.impls) for op in state.registry}, in_torch()


def test_a_transaction_registers_all_at_its_end(state: Runtime) -> None:
    """Inside nothing is visible yet; afterwards all of it carries the distribution and its devices."""
    before = everything(state)
    with transaction("some-distribution", frozenset({"cpu"})) as held:
        held.add_ops([vllm_ir.register_op(staged_op)])
        held.add_implementations([declared("a"), declared("b", "staged_op", staged_op)])
        assert everything(state) == before
    assert list(state.registry.get("staged_op").impls) == ["native", "b"]
    ready = ops.silu_and_mul.impls["a"]
    assert (ready.distribution, ready.devices) == ("some-distribution", frozenset({"cpu"}))
    assert ops.staged_op(torch.ones(2)).tolist() == [2.0, 2.0]


def test_two_of_three_and_then_an_exception(state: Runtime) -> None:
    """What was declared before the exception is gone with it, and the exception is the caller's own."""
    before = everything(state)
    with pytest.raises(ZeroDivisionError), transaction("some-distribution") as held:
        held.add_implementations([declared("a")])
        ops.silu_and_mul.register_impl("b")(silu)
        _ = 1 / 0
    assert everything(state) == before
    with transaction("some-distribution") as held:
        held.add_implementations([declared("a"), declared("b"), declared("c")])
    assert list(ops.silu_and_mul.impls) == ["native", "a", "b", "c"]


def test_the_third_of_three_does_not_fit(state: Runtime) -> None:
    """A mistake in one declaration takes the distribution's others with it."""
    before = everything(state)
    with pytest.raises(errors.SchemaMismatch), transaction("some-distribution") as held:
        held.add_ops([vllm_ir.register_op(staged_op)])
        held.add_implementations([declared("a"), declared("b"), declared("c", function=staged_op)])
    assert everything(state) == before


def test_an_implementation_of_an_unknown_op(state: Runtime) -> None:
    """The op's name is checked against the registry and against what the transaction brings."""
    before = everything(state)
    with pytest.raises(errors.UnknownOp, match="Did you mean 'staged_op'"), transaction("some-distribution") as held:
        held.add_ops([vllm_ir.register_op(staged_op)])
        held.add_implementations([declared("a", "staged_opp", staged_op)])
    assert everything(state) == before


@pytest.mark.parametrize("broken", [1, 2])
def test_a_commit_that_fails_midway(state: Runtime, monkeypatch: pytest.MonkeyPatch, broken: int) -> None:
    """Ops that were bound before another could not be are unbound; both can be declared again."""
    before = everything(state)
    bound: list[str] = []

    def breaking(op: Any) -> Any:
        """Bind, or fail for one of them."""
        bound.append(op.name)
        if len(bound) == broken:
            msg = "torch said no"
            raise RuntimeError(msg)
        return bind_op(op)

    with monkeypatch.context() as patched:
        patched.setattr(staging, "bind_op", breaking)
        with pytest.raises(RuntimeError, match="torch said no"), transaction("some-distribution"):
            vllm_ir.register_op(name="midway_first")(staged_op)
            vllm_ir.register_op(name="midway_second", allow_inplace=True)(staged_inplace)
            ops.silu_and_mul.register_impl("a")(silu)
    assert len(bound) == broken
    assert everything(state) == before
    with transaction("some-distribution"):
        first = vllm_ir.register_op(name="midway_first")(staged_op)
        second = vllm_ir.register_op(name="midway_second", allow_inplace=True)(staged_inplace)
    assert first(torch.ones(1)).item() == 2.0
    assert second.maybe_inplace(torch.ones(1)).item() == 2.0


def test_another_thread_was_first(state: Runtime) -> None:
    """A name that was free when it was staged and is taken at the commit takes the whole transaction down."""
    with pytest.raises(errors.DuplicateImplementation), transaction("some-distribution") as held:
        held.add_implementations([declared("a"), declared("b")])
        other = threading.Thread(target=lambda: ops.silu_and_mul.register_impl("b")(silu))
        other.start()
        other.join()
    assert list(ops.silu_and_mul.impls) == ["native", "b"]
    assert state.registry.names[0] == "silu_and_mul"


def test_nested_declarations_are_staged(state: Runtime) -> None:
    """`register_op` and `register_impl` at the top of a provider's module belong to the transaction that imports it."""
    with transaction("some-distribution"):
        op = vllm_ir.register_op(staged_op)
        impl = op.register_impl("a")(staged_op)
        assert impl.distribution == "some-distribution"
        assert "staged_op" not in state.registry
        assert list(op.impls) == ["native"]
    assert state.registry.get("staged_op") is op
    assert list(op.impls) == ["native", "a"]
    assert op.impls["a"].distribution == "some-distribution"


def test_an_op_twice_in_one_transaction(state: Runtime) -> None:
    """A second op of the name is refused as if the first were registered; the same op twice is one."""
    with pytest.raises(errors.DuplicateOp), transaction("some-distribution"):
        vllm_ir.register_op(staged_op)
        vllm_ir.register_op(name="staged_op")(staged_inplace)
    assert "staged_op" not in state.registry
    with transaction("some-distribution") as held:
        op = vllm_ir.register_op(staged_op)
        held.add_ops([op, op, ops.silu_and_mul])
    assert state.registry.get("staged_op") is op


def test_an_implementation_twice_in_one_transaction(state: Runtime) -> None:
    """The same function twice is one; another one by the same provider is refused."""
    with transaction("some-distribution") as held:
        one = declared("a")
        held.add_implementations([one, one])
        ops.silu_and_mul.register_impl("a")(silu)
    assert list(ops.silu_and_mul.impls) == ["native", "a"]
    before = everything(state)
    with pytest.raises(errors.DuplicateImplementation), transaction("other-distribution") as held:
        held.add_implementations([declared("b"), declared("b", function=other_silu)])
    assert everything(state) == before


def test_other_threads_do_not_stage(state: Runtime) -> None:
    """A transaction is of one context: what another thread registers meanwhile is registered at once, and stays."""
    with pytest.raises(ZeroDivisionError), transaction("some-distribution"):
        ops.silu_and_mul.register_impl("mine")(silu)
        other = threading.Thread(target=lambda: ops.silu_and_mul.register_impl("theirs")(silu))
        other.start()
        other.join()
        assert list(ops.silu_and_mul.impls) == ["native", "theirs"]
        _ = 1 / 0
    assert list(ops.silu_and_mul.impls) == ["native", "theirs"]
    assert state.staging.get() is None


def test_threads_hold_transactions_of_their_own(state: Runtime) -> None:
    """Several at once, half of which fail: exactly the others' declarations are there."""
    barrier = threading.Barrier(8)

    def declare(number: int) -> None:
        """Declare one implementation, and fail if the number is odd."""
        with contextlib.suppress(ZeroDivisionError), transaction(f"distribution-{number}") as held:
            held.add_implementations([declared(f"p{number}")])
            barrier.wait(timeout=30)
            _ = 1 / ((number + 1) % 2)

    threads = [threading.Thread(target=declare, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    impls = ops.silu_and_mul.impls
    assert sorted(impls) == ["native", "p0", "p2", "p4", "p6"]
    assert {impls[f"p{n}"].distribution for n in (0, 2, 4, 6)} == {f"distribution-{n}" for n in (0, 2, 4, 6)}
    assert state.staging.get() is None


def test_a_transaction_inside_another_waits_for_the_outer_one(state: Runtime) -> None:
    """If the outer one fails nothing of the inner one stays; if it succeeds the inner one's distribution is kept."""
    before = everything(state)
    with contextlib.suppress(KeyError), transaction("outer"):
        with transaction("inner") as held:
            held.add_implementations([declared("kernel")])
        raise KeyError
    assert everything(state) == before
    with transaction("outer"), transaction("inner") as held:
        held.add_implementations([declared("kernel")])
    assert ops.silu_and_mul.impls["kernel"].distribution == "inner"


def test_two_transactions_inside_one_another_do_not_take_one_name(state: Runtime) -> None:
    """The second implementation of one provider is refused before anything is registered."""
    before = everything(state)
    with pytest.raises(errors.DuplicateImplementation), transaction("outer") as outer:
        outer.add_implementations([declared("kernel")])
        with transaction("inner") as inner:
            inner.add_implementations([declared("kernel", function=other_silu)])
    assert everything(state) == before
