"""A stack of decoder-like layers on an in-place provider costs what hand-written in-place code costs."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from vllm_ir import ops

LAYERS = 32
HIDDEN = 32
fused: Any = ops.fused_add_rms_norm


class Allocations(TorchDispatchMode):
    """Counts bytes of tensors that live, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it allocates."""
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        """Count the memory of a tensor until it goes."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone() -> None:
            """Give it back."""
            self._seen.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


def define_kernel(calls: list[int]) -> Any:
    """Return an in-place kernel as a torch op without results, as C++ ones are, that counts its calls."""

    @torch.library.custom_op("vllm_ir_tests::add_norm_", mutates_args={"x", "residual"})
    def kernel(x: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
        """Add and normalise in place."""
        calls.append(x.shape[0])
        residual.add_(x)
        torch.div(residual, (residual.pow(2).mean(-1, keepdim=True) + epsilon).sqrt(), out=x)
        x.mul_(weight)

    return kernel


def test_thirty_two_layers(compiled: Any, state: Any) -> None:
    """No copy is left, a layer calls the kernel once, and memory peaks where hand-written code's does."""
    assert state is not None
    calls: list[int] = []
    kernel = define_kernel(calls)

    def probe(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run the kernel over both activations."""
        assert variance_size is None
        kernel(x, x_residual, weight, epsilon)
        return x, x_residual

    fused.register_impl("probe", inplace=True)(probe)
    weights = [torch.rand(HIDDEN) + 0.5 for _ in range(LAYERS)]
    matrices = [torch.randn(HIDDEN, HIDDEN) / HIDDEN**0.5 for _ in range(LAYERS)]

    def model(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Run the layers, each donating the residual."""
        y = x * 1
        for weight, matrix in zip(weights, matrices, strict=True):
            y, residual = fused.maybe_inplace(y, residual, weight, 1e-5)
            y = torch.mm(torch.tanh(y), matrix)
        return y, residual

    def by_hand(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Do the same with the kernel, giving everything up as soon as it was read."""
        y = x * 1
        for weight, matrix in zip(weights, matrices, strict=True):
            kernel(y, residual, weight, 1e-5)
            t = torch.tanh(y)
            del y
            y = torch.mm(t, matrix)
            del t
        return y, residual

    x, residual = torch.randn(8, HIDDEN), torch.randn(8, HIDDEN)
    run = compiled(model)
    with torch.no_grad():
        wanted = by_hand(x, residual.clone())
        got = run(x, residual.clone())
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert compiled.count(torch.ops.aten.clone.default) == 0
    assert compiled.count(torch.ops.vllm_ir_tests.add_norm_.default) == LAYERS
    assert (compiled.lowered[0].copies, compiled.lowered[0].traces) == (0, 1)
    assert len(compiled.lowered[0].selected["fused_add_rms_norm"]) == LAYERS
    calls.clear()
    peaks = []
    for function in (compiled.graphs[-1], by_hand):
        fresh = residual.clone()
        given = [x, fresh]
        if function is not by_hand:
            values = iter(given)
            given = [_input(node, values, weights, matrices) for node in _placeholders(function)]
        gc.collect()
        with torch.no_grad(), Allocations() as counted:
            result = function(*given)
        assert len(calls) == LAYERS
        calls.clear()
        peaks.append(counted.peak)
        del result
    assert peaks[0] <= peaks[1]
    assert compiled.lowered[0].seconds < 2.0


def _placeholders(module: Any) -> list[Any]:
    """Return the inputs of a graph."""
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _input(node: Any, values: Any, weights: list[Tensor], matrices: list[Tensor]) -> Tensor:
    """Return an input of the right shape for a placeholder: rows in their order, any weight and any matrix."""
    shape = tuple(node.meta["val"].shape)
    if shape == (HIDDEN,):
        return weights[0]
    return matrices[0] if shape == (HIDDEN, HIDDEN) else next(values)
