"""What is kept of calls: exact counts, each refusal with its reason, one warning per reason, and a trace."""

from __future__ import annotations

import logging
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from vllm_ir import Unsupported, errors
from vllm_ir.isolation import isolated
from vllm_ir.landscape import Landscape
from vllm_ir.observation import Counter, Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.op import IrOp, IrOpInplace
    from vllm_ir.runtime import Runtime


def counted(x: torch.Tensor) -> torch.Tensor:
    """Return x times two."""
    return x * 2


def by_size(x: torch.Tensor) -> bool | Unsupported:
    """Take rows of four, and say the size of others."""
    return x.shape[-1] == 4 or Unsupported(f"needs rows of 4, got {x.shape[-1]}")


def plain_refusal(x: torch.Tensor) -> bool:
    """Take rows of four without a word."""
    return x.shape[-1] == 4


def broken(x: torch.Tensor) -> bool:
    """Fail on rows that are not of four."""
    if x.shape[-1] != 4:
        msg = f"no rows of {x.shape[-1]}"
        raise ValueError(msg)
    return True


def make_op(predicate: Callable[..., Any] | None = by_size) -> IrOpInplace:
    """Register the op and a provider with a predicate."""
    op = vllm_ir.register_op(name="counted", allow_inplace=True)(counted)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        """Return x times three."""
        return x * 3

    op.register_impl("fast", supports_args=predicate)(kernel)
    return op


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of vllm-ir."""
    return [r.getMessage() for r in caplog.records if r.name == "vllm_ir" and r.levelno == logging.WARNING]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("predicate", [by_size, plain_refusal])
def test_a_named_provider_that_refuses_warns_once_per_reason(
    predicate: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The next one takes the call; each reason is told once, however often and by whichever way it comes."""
    op = make_op(predicate)
    op.set_default(["fast"])
    for size in (5, 5, 6, 5, 4, 6):
        x = torch.ones(2, size)
        factor = 3.0 if size == 4 else 2.0
        assert op(x)[0, 0].item() == factor
        assert op.torch_op(x)[0, 0].item() == factor
        assert op.maybe_inplace(x)[0, 0].item() == factor
    with op.set_priority(["fast"]):
        op(torch.ones(5))
    told = ["needs rows of 4, got 5", "needs rows of 4, got 6"] if predicate is by_size else [None]
    assert warnings_in(caplog) == [
        f"op counted: provider fast, named by set_default, refuses: {reason or 'supports_args returned False'}."
        " The next one takes the call."
        for reason in told
    ]


def test_a_provider_that_nobody_named_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    """A default order is only a proposal: a refusal there is no news, also in strict mode."""
    for variables in ({}, {"VLLM_IR_STRICT": "1"}):
        with isolated(variables, landscape=Landscape(provider_defaults={False: {"counted": ("fast",)}})):
            op = make_op()
            assert op(torch.ones(5))[0].item() == 2.0
            assert op(torch.ones(4))[0].item() == 3.0
    with isolated():
        op = make_op()
        vllm_ir.IrOpPriorityConfig.with_default(["fast"]).apply()
        assert op(torch.ones(5))[0].item() == 2.0
    assert warnings_in(caplog) == []


def test_a_broken_predicate_warns_whoever_named_it(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a predicate is the provider's fault, so it is told once per reason even where nobody asked."""
    with isolated(landscape=Landscape(provider_defaults={False: {"counted": ("fast",)}})):
        op = make_op(broken)
        for _ in range(3):
            assert op(torch.ones(5))[0].item() == 2.0
    assert warnings_in(caplog) == [
        "op counted: provider fast refuses: supports_args raised ValueError: no rows of 5. The next one takes the call."
    ]


@pytest.mark.usefixtures("state")
def test_one_warning_from_many_threads(caplog: pytest.LogCaptureFixture) -> None:
    """Sixteen threads that meet one reason at once tell it once."""
    op = make_op()
    op.set_default(["fast"])
    barrier = threading.Barrier(16)

    def call() -> None:
        """Call with arguments that are refused."""
        barrier.wait(timeout=30)
        for _ in range(20):
            op(torch.ones(5))

    run_in_threads(call, 16)
    assert len(warnings_in(caplog)) == 1


def run_in_threads(target: Callable[[], None], number: int) -> None:
    """Run a function in some threads and wait for all."""
    threads = [threading.Thread(target=target) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("way", ["eager", "torch", "donating", "scope"])
def test_strict_mode_raises_what_a_named_provider_refuses(way: str) -> None:
    """Nothing falls back: the error says who named the provider, and why it refused."""
    with isolated({"VLLM_IR_STRICT": "1"}):
        op = make_op()
        x = torch.ones(5)
        op.set_default(["fast"])
        calls: dict[str, Callable[[], object]] = {
            "eager": lambda: op(x),
            "torch": lambda: op.torch_op(x),
            "donating": lambda: op.maybe_inplace(x),
            "scope": lambda: in_scope(op, x),
        }
        with pytest.raises(errors.RefusedArguments) as caught:
            calls[way]()
        assert op(torch.ones(4))[0].item() == 3.0
    error = caught.value
    named = "set_priority" if way == "scope" else "set_default"
    assert str(error) == (
        f"Provider 'fast', named for op 'counted' by {named}, refused the call: needs rows of 4, got 5. Strict mode"
        " does not fall back; unset VLLM_IR_STRICT, or strict in the file that sets it, to let the next provider take"
        " it."
    )
    assert (error.op, error.provider, error.reason, error.layer) == ("counted", "fast", "needs rows of 4, got 5", named)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - made here


def in_scope(op: IrOp, x: torch.Tensor) -> object:
    """Call in a scope that names the provider."""
    with op.set_priority(["fast"]):
        return op(x)


def test_counts_are_those_of_the_calls() -> None:
    """Each provider's calls and each refusal count, by every way; nothing else does."""
    with isolated({"VLLM_IR_COUNTERS": "1"}):
        op = make_op()
        op.set_default(["fast"])
        for size, times in ((4, 3), (5, 2), (6, 1)):
            for _ in range(times):
                op(torch.ones(size))
                op.torch_op(torch.ones(size))
                op.maybe_inplace(torch.ones(size))
        op.dispatch(torch.ones(4))
        op.explain(torch.ones(4))
        op(torch.ones(4, device="meta"))
        report = vllm_ir.report()
        again = vllm_ir.report()
    assert report.counting
    told = report.ops["counted"]
    assert told.calls == {"fast": 9, "native": 9}
    assert set(told.refusals) == {("fast", "needs rows of 4, got 5", 6), ("fast", "needs rows of 4, got 6", 3)}
    assert [(entry.provider, entry.source) for entry in told.priority] == [
        ("fast", "set_default"),
        ("native", "built-in"),
    ]
    assert again == report
    assert report.ops["rms_norm"].calls == {}
    lines = str(report).splitlines()
    assert "counted: order fast [set_default], native [built-in]; calls fast 9, native 9" in lines
    assert "  fast refused 6x: needs rows of 4, got 5" in lines


@pytest.mark.usefixtures("state")
def test_nothing_is_counted_without_the_variable() -> None:
    """The report says so, and still has the order and what a named provider refused."""
    op = make_op()
    op.set_default(["fast"])
    op(torch.ones(5))
    report = vllm_ir.report()
    assert not report.counting
    assert report.ops["counted"].calls == {}
    assert report.ops["counted"].refusals == (("fast", "needs rows of 4, got 5", 1),)
    assert str(report).startswith("Calls are not counted; set VLLM_IR_COUNTERS=1 before start.")


def test_counts_are_exact_under_threads() -> None:
    """Eight threads with some thousand calls lose none, neither of calls nor of refusals."""
    with isolated({"VLLM_IR_COUNTERS": "1"}):
        op = make_op()
        op.set_default(["fast"])
        taken, refused = torch.ones(4), torch.ones(5)

        def call() -> None:
            """Call with both kinds of arguments."""
            for _ in range(250):
                op(taken)
                op(refused)

        run_in_threads(call, 8)
        told = vllm_ir.report().ops["counted"]
    assert told.calls == {"fast": 2000, "native": 2000}
    assert told.refusals == (("fast", "needs rows of 4, got 5", 2000),)


def test_reading_a_counter_does_not_count() -> None:
    """However often it is read between."""
    counter = Counter()
    read = []
    for _ in range(3):
        counter.raise_by_one()
        read += [counter.read(), counter.read()]
    assert read == [1, 1, 2, 2, 3, 3]
    ledger = Ledger("op")
    ledger.calls_of("nobody")
    assert ledger.calls() == {}


def test_the_trace_tells_each_selection_and_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """With VLLM_IR_TRACE=1 every call has a line that agrees with who ran, and every refusal one before it."""
    caplog.set_level(logging.DEBUG, logger="vllm_ir")
    with isolated({"VLLM_IR_TRACE": "1"}, landscape=Landscape(provider_defaults={False: {"counted": ("fast",)}})):
        op = make_op()
        op(torch.ones(4))
        op(torch.ones(5))
        op(torch.ones(5))
        told = vllm_ir.report().ops["counted"].calls
    lines = [r.getMessage() for r in caplog.records if r.name == "vllm_ir" and "order" not in r.getMessage()]
    refused = ["op counted: fast refuses: needs rows of 4, got 5", "op counted: native runs"]
    assert lines == ["op counted: fast runs", *refused, *refused]
    assert told == {"fast": 1, "native": 2}


def test_the_order_is_logged_when_it_is_made(state: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    """One line at DEBUG per change, none per call."""
    caplog.set_level(logging.DEBUG, logger="vllm_ir")
    op = make_op()
    for _ in range(3):
        op(torch.ones(4))
    op.set_default(["fast"])
    for _ in range(3):
        op(torch.ones(4))
    lines = [r.getMessage() for r in caplog.records if r.name == "vllm_ir"]
    assert lines == ["op counted: order ['native']", "op counted: order ['fast', 'native']"]
    assert state.board(op).warmed
