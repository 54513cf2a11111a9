"""Ops under autocast: it reaches into native in eager and not in a graph, and where that shows it is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from vllm_ir import ops, register_op
from vllm_ir.compile.lower_to import lower_graph

if TYPE_CHECKING:
    from vllm_ir.runtime import Runtime

X, W = torch.randn(4, 16), torch.randn(16, 16)


def lower(module: torch.fx.GraphModule, _inputs: Any) -> Any:
    """Be a compiler that lowers a graph and runs it as it is."""
    lower_graph(module)
    return module


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said about autocast."""
    return [text for record in caplog.records if "autocast" in (text := record.getMessage())]


@pytest.fixture
def product(state: Runtime) -> Any:
    """Return an op that is a product of matrices."""
    assert state is not None

    @register_op
    def product_of_matrices(x: Tensor, weight: Tensor) -> Tensor:
        """Return the product."""
        return x @ weight

    return product_of_matrices


@pytest.mark.parametrize("around", [False, True], ids=["in the graph", "around the call"])
def test_an_op_that_autocast_changes_in_eager_is_told_of(
    product: Any, around: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A compiled op gives the dtype that its fake says, as torch's custom ops do; eager native is under autocast."""

    def run(x: Tensor) -> Any:
        """Call the op twice under autocast."""
        with torch.autocast("cpu", torch.bfloat16):
            return product(product(x, W).float(), W)

    def called(x: Tensor) -> Any:
        """Call the op under whatever holds."""
        return product(x, W)

    function = called if around else run
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=around):
        assert function(X).dtype is torch.bfloat16
        got = vllm_ir.compile(function, lower_to=lower)(X)
    assert got.dtype is torch.float32
    (message,) = warned(caplog)
    assert "op product_of_matrices (" in message
    assert "test_autocast.py" in message
    assert "native gives torch.bfloat16 in eager and torch.float32 in a graph" in message
    assert "torch.autocast('cpu', enabled=False)" in message


def test_nothing_is_told_where_nothing_differs(product: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Ops that compute in float32 whatever holds, and a product where autocast is off, or has been left."""

    def run(x: Tensor) -> Any:
        """Call the op where autocast is off."""
        with torch.autocast("cpu", torch.bfloat16):
            y = ops.rms_norm(ops.silu_and_mul(torch.cat((x, x), -1)), None, 1e-5)
            with torch.autocast("cpu", enabled=False):
                y = product(y, W)
        return product(y, W)

    with torch.no_grad():
        got = vllm_ir.compile(run, lower_to=lower, dynamic=True)(X)
    torch.testing.assert_close(got, run(X))
    assert warned(caplog) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_changes_none_of_the_librarys_own_ops(dtype: torch.dtype) -> None:
    """The same bits and dtypes in eager, so that a compiled one differs in nothing either."""
    x, r, angles = (torch.randn(4, 16, dtype=dtype) for _ in range(3))
    weight, positions = torch.ones(16, dtype=dtype), torch.arange(4)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (ops.rms_norm, (x, weight, 1e-5)),
        (ops.fused_add_rms_norm, (x, r, weight, 1e-5)),
        (ops.silu_and_mul, (x,)),
        (ops.gelu_and_mul, (x, "tanh")),
        (ops.rotary_embedding, (positions, x, r, 16, 16, angles, True)),
    ]
    for op, args in calls:
        wanted = op(*args)
        with torch.autocast("cpu", torch.bfloat16):
            got = op(*args)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
