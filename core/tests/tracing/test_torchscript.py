"""`torch.jit.trace`, which torch has deprecated: what it records of an op, and how to make it record the op itself.

It is no mode, no subclass and no transform, and asking for it would cost every call a tenth of dispatch; so it records
what runs while it looks. Where that is a kernel that torch does not see into, the torch op is what to trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.jit._trace as torchscript
from torch import Tensor
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime

X, LONGER, WEIGHT = torch.randn(4, 64), torch.randn(7, 64), torch.randn(64)
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def opaque(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return twice x, calculated where torch does not see it, as a kernel does."""
    del weight, epsilon, variance_size
    out = torch.empty_like(x)
    out.detach().numpy()[:] = x.detach().numpy() * 2
    return out


class Norm(torch.nn.Module):
    """A module that calls an op with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(WEIGHT.clone())

    def forward(self, x: Tensor) -> Any:
        """Call the op."""
        return ops.rms_norm(x, self.weight, 1e-5)


def trace(function: Callable[[Tensor], Any], **options: Any) -> Any:
    """Return a function as torch.jit.trace records it."""
    return torch.jit.trace(function, (X,), **options)


def kinds(traced: Any) -> list[str]:
    """Return the operations in a traced function, constants left out."""
    return [node.kind() for node in traced.graph.nodes() if node.kind() != "prim::Constant"]


@pytest.mark.usefixtures("state")
def test_natives_operations_are_recorded_and_are_right_for_other_sizes() -> None:
    """Native is made of torch's own operations."""
    traced = trace(lambda x: ops.rms_norm(x, WEIGHT, 1e-5))
    assert "aten::rsqrt" in kinds(traced)
    torch.testing.assert_close(traced(LONGER), ops.rms_norm(LONGER, WEIGHT, 1e-5))


def test_the_torch_op_is_recorded_as_one_node_and_asks_for_the_provider_at_each_run(state: Runtime) -> None:
    """A provider named afterwards runs, too."""
    assert state is not None
    traced = trace(lambda x: ops.rms_norm.torch_op(x, WEIGHT, 1e-5))
    assert kinds(traced) == ["vllm_ir::rms_norm"]
    torch.testing.assert_close(traced(LONGER), ops.rms_norm(LONGER, WEIGHT, 1e-5))
    ops.rms_norm.register_impl("opaque")(opaque)
    ops.rms_norm.set_default("opaque")
    assert torch.equal(traced(LONGER), LONGER * 2)


def test_where_a_gradient_is_wanted_the_torch_op_is_recorded_anyway(state: Runtime) -> None:
    """Training goes through it for native's gradients; torch's own check traces without them and stops."""
    assert state is not None
    ops.rms_norm.register_impl("opaque")(opaque)
    ops.rms_norm.set_default("opaque")
    with pytest.raises(torchscript.TracingCheckError):
        trace(Norm())
    traced = trace(Norm(), check_trace=False)
    assert "vllm_ir::rms_norm" in kinds(traced)
    assert torch.equal(traced(LONGER), LONGER * 2)


def test_of_a_kernel_torch_records_only_what_it_sees_and_says_so(state: Runtime) -> None:
    """The limit of it, which its own check finds: the graph allocates, and nothing fills what it has allocated."""
    assert state is not None
    ops.rms_norm.register_impl("opaque")(opaque)
    ops.rms_norm.set_default("opaque")
    with pytest.warns(torchscript.TracerWarning):
        traced = trace(lambda x: ops.rms_norm(x, WEIGHT, 1e-5))
    assert kinds(traced) == ["aten::empty_like"]
