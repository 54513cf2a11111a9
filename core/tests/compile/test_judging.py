"""Who runs a call in a graph: predicates are asked on fake tensors, and never about the size of one batch."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from vllm_ir import Unsupported, ops, report
from vllm_ir.compile.lower_to import lower_graph
from vllm_ir.errors import BatchGuard, UntraceableImplementation
from vllm_ir.isolation import isolated
from vllm_ir.landscape import Landscape
from vllm_ir.platforms import Platform
from vllm_ir.verdict import NO_REASON

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime

rms: Any = ops.rms_norm


def run(x: Tensor, w: Tensor | None) -> Any:
    """Call one op."""
    return rms(x * 2, w, 1e-5)


def register(predicate: Callable[..., Any] | None = None, function: Callable[..., Any] | None = None) -> None:
    """Register provider `probe` with a predicate on x, or with another function."""
    supports = None

    if predicate is not None:

        def supports(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Any:  # noqa: ARG001
            """Ask about x."""
            return predicate(x)

    rms.register_impl("probe", supports_args=supports)(function or rms.declaration.native)


def lowered(module: torch.fx.GraphModule, _inputs: Any) -> Any:
    """Be a compiler that lowers a graph and runs it as it is."""
    lower_graph(module)
    return module


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was warned about."""
    return [r.getMessage() for r in caplog.records if r.name == "vllm_ir" and r.levelno == logging.WARNING]


def inner(function: Callable[[], Any]) -> BaseException:
    """Return the exception that compiling raised."""
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        function()
    found: BaseException = caught.value.inner_exception
    return found


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("named", [True, False], ids=["named", "default"])
@pytest.mark.parametrize("answer", [bool, lambda told: told], ids=["branch", "symbolic answer"])
def test_a_branch_on_the_batch(compiled: Any, named: bool, answer: Callable[[Any], Any]) -> None:
    """A predicate whose answer depends on the number of tokens is an error that names op, provider and question."""
    register(lambda x: answer(x.shape[0] > 7))
    if not named:
        rms.set_default("probe")
    error = inner(
        lambda: compiled(run, dynamic=True, provider="probe" if named else None)(torch.randn(4, 16), torch.ones(16))
    )
    assert isinstance(error, BatchGuard)
    assert (error.op, error.provider) == ("rms_norm", "probe")
    assert error.guard.endswith(" > 7")
    assert "test_judging.py" in error.where


def test_a_branch_on_the_batch_is_foreseen(state: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    """A first graph knows its batch, so that the answer holds; that the next one will not compile is said there."""
    assert state is not None
    register(lambda x: x.shape[0] > 2 and x.shape[-1] == 16)
    call = vllm_ir.compile(run, lower_to=lowered, priority={"rms_norm": "probe"})
    with torch.no_grad():
        for _ in range(2):
            call(torch.randn(4, 16), torch.ones(16))
        (message,) = warned(caplog)
        assert "op rms_norm: supports_args of provider probe" in message
        assert "test_judging.py" in message
        assert " > 2. This graph is for one size" in message
        with pytest.raises(BatchGuard):
            call(torch.randn(5, 16), torch.ones(16))


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("predicate", "dynamic"),
    [
        (lambda x: x.shape[-1] == 16 and x.is_contiguous() and x.stride(0) == 16 and x.dim() == 2, None),
        (lambda x: x.numel() % 8 == 0 and x.view(-1, 16).shape[-1] == 16, None),
        (lambda x: x.shape[0] > 2, False),
    ],
    ids=["trailing sizes", "answered for all", "one size for ever"],
)
def test_nothing_is_foreseen_where_nothing_will_come(
    predicate: Any, dynamic: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Questions that need no batch, and graphs that stay with theirs."""
    register(predicate)
    call = vllm_ir.compile(run, lower_to=lowered, priority={"rms_norm": "probe"}, dynamic=dynamic)
    with torch.no_grad():
        for tokens in (4, 5):
            call(torch.randn(tokens, 16), torch.ones(16))
    assert warned(caplog) == []
    assert {tuple(graph.counts["rms_norm"]) for graph in report().graphs} == {("probe",)}


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        (lambda x: bool((x.sum() > 0).item()), "not known while compiling"),
        (lambda _: 1 / 0, "ZeroDivisionError"),
        (lambda _: Unsupported("needs another day"), "needs another day"),
        (lambda _: False, NO_REASON),
    ],
    ids=["data", "raises", "sentence", "false"],
)
def test_refusals(compiled: Any, caplog: pytest.LogCaptureFixture, predicate: Any, reason: str) -> None:
    """Whatever else a predicate answers is a refusal with a reason, told once, and native runs."""
    register(predicate)
    call = compiled(run, dynamic=True)
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad():
            call(torch.randn(4, 16), torch.ones(16))
    (message,) = warned(caplog)
    assert reason in message
    assert compiled.lowered[0].selected == {"rms_norm": {"rms_norm": "native"}}
    ((op, provider, told),) = compiled.lowered[0].refusals
    assert (op, provider) == ("rms_norm", "probe")
    assert reason in told


@pytest.mark.usefixtures("state")
def test_an_open_trailing_size(compiled: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A question about a trailing size that the graph leaves open is a refusal that says what to do."""
    register(lambda x: x.shape[-1] % 8 == 0 and x.shape[-1] > 8)
    with torch.no_grad():
        compiled(run, dynamic=True)(torch.randn(4, 16), None)
    (message,) = warned(caplog)
    assert "mark it static" in message
    assert compiled.lowered[0].selected == {"rms_norm": {"rms_norm": "native"}}


@pytest.mark.usefixtures("state")
def test_a_known_trailing_size_and_one_graph_for_all_batches(compiled: Any) -> None:
    """The same question about a size that is known is answered, and other batches compile nothing anew."""
    register(lambda x: x.shape[-1] % 8 == 0 and x.stride(-1) == 1)
    call = compiled(run)
    weight = torch.ones(16)
    with torch.no_grad():
        for tokens in (4, 9, 31):
            x = torch.randn(tokens, 16)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(call(x, weight), run(x, weight))
    assert [each.selected for each in compiled.lowered] == [{"rms_norm": {"rms_norm": "probe"}}]


@pytest.mark.usefixtures("state")
def test_unbacked_sizes(compiled: Any) -> None:
    """A number of rows that depends on data does not keep a provider from running."""
    register(lambda x: x.shape[-1] == 16)

    def select(x: Tensor, w: Tensor) -> Any:
        """Normalise some rows, twice."""
        rows = x[x[:, 0] > 0]
        return rms(rms(rows, w, 1e-5), w, 1e-5)

    x, w = torch.randn(9, 16), torch.ones(16)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        torch.testing.assert_close(compiled(select)(x, w), select(x, w))
    assert set(compiled.lowered[0].selected["rms_norm"].values()) == {"probe"}


def opaque(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:  # noqa: ARG001
    """Ask for a data pointer, as kernels do that were not made for graphs."""
    return x if x.data_ptr() else x * epsilon


def by_batch(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:  # noqa: ARG001
    """Take another way for small batches."""
    return x * 2 if x.shape[0] > 7 else x * 3


def halved(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:  # noqa: ARG001
    """Return half of what is wanted."""
    return x[:, ::2]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (opaque, "cannot be put into a graph.* Make the kernel one node of it by vllm_ir.make_torch_op"),
        (by_batch, "7"),
        (halved, r"the shape is \[4, 8\], wanted \[4, 16\]. Let it return what native returns"),
    ],
    ids=["data pointer", "branch on the batch", "other results"],
)
def test_what_cannot_be_traced(compiled: Any, function: Any, cause: str) -> None:
    """An implementation that was named raises; one that is merely there is skipped, told once, and native runs."""
    register(function=function)
    x, w = torch.randn(4, 16), torch.ones(16)
    error = inner(lambda: compiled(run, dynamic=True)(x, w))
    assert isinstance(error, UntraceableImplementation)
    assert (error.op, error.provider) == ("rms_norm", "probe")
    assert re.search(cause, str(error))
    assert ("make_torch_op" in str(error)) is (function is not halved)


def test_what_cannot_be_traced_and_was_not_named(compiled: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One that a default order puts first is skipped, recorded and warned about once."""

    class Elsewhere(Platform):
        """A platform that lets providers run in graphs."""

        native_first_when_compiling = False

    defaults = {"rms_norm": ("probe",)}
    platform = Elsewhere(name="elsewhere", device_type="cpu")
    landscape = Landscape(platform=platform, provider_defaults={True: defaults, False: {}})
    x, w = torch.randn(4, 16), torch.ones(16)
    with isolated(landscape=landscape):
        register(function=opaque)
        for _ in range(2):
            torch._dynamo.reset()
            with torch.no_grad():
                result = compiled(run, provider=None)(x, w)
            torch.testing.assert_close(result, rms.declaration.native(x * 2, w, 1e-5))
    (message,) = warned(caplog)
    assert "cannot be put into a graph" in message
    for lowered in compiled.lowered:
        assert lowered.selected == {"rms_norm": {"rms_norm": "native"}}
        assert "cannot be put into a graph" in next(iter(lowered.refusals))[2]


@pytest.mark.usefixtures("state")
def test_the_same_question_is_asked_once(compiled: Any) -> None:
    """Layers that call an op with the same kind of arguments ask its predicate, and trace it, once."""
    asked: list[Any] = []

    def ask(x: Tensor) -> bool:
        """Note the question down."""
        asked.append(x)
        return True

    register(ask)

    def layers(x: Tensor, w: Tensor) -> Any:
        """Call an op four times, once on another width."""
        for _ in range(3):
            x = rms(x, w, 1e-5)
        return rms(x[:, :8].contiguous(), None, 1e-5)

    with torch.no_grad():
        compiled(layers)(torch.randn(4, 16), torch.ones(16))
    assert len(asked) == 2
    assert compiled.lowered[0].traces == 2
    # Where sizes may still be opened it is asked once more, about all batches.
    asked.clear()
    with torch.no_grad():
        vllm_ir.compile(layers, lower_to=lowered, priority={"rms_norm": "probe"})(torch.randn(4, 16), torch.ones(16))
    assert [str(x.shape[0]) == "4" for x in asked] == [True, False, True, False]
