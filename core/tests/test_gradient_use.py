"""What a program may do with inputs and results of which a gradient is wanted, before and during the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from vllm_ir import ops

if TYPE_CHECKING:
    from vllm_ir.runtime import Runtime


@pytest.mark.parametrize("wanting", [(0,), (1,), (2,), (0, 2)])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("provider", ["native", "functional", "inplace"])
def test_only_some_inputs_want_a_gradient(
    state: Runtime, add_provider: Any, wanting: tuple[int, ...], inplace: bool, provider: str
) -> None:
    """Only the inputs that want one get a gradient, and a parameter as the weight alone is enough to change nothing."""
    assert state is not None
    op: Any = ops.fused_add_rms_norm
    if provider != "native":
        add_provider(op, "a", 1.0, inplace=provider == "inplace")
        op.set_default("a")
    leaves: list[Tensor] = [torch.randn(2, 4), torch.randn(2, 4), torch.nn.Parameter(torch.randn(4))]
    for i, leaf in enumerate(leaves):
        leaf.requires_grad_(i in wanting)
    kept = [leaf.detach().clone() for leaf in leaves]
    out, total = (op.maybe_inplace if inplace else op)(*leaves, 1e-5)
    (out.sum() + total.sin().sum()).backward()
    assert [leaf.grad is not None for leaf in leaves] == [i in wanting for i in range(3)]
    assert all(torch.equal(leaf, before) for leaf, before in zip(leaves, kept, strict=True))


@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
@pytest.mark.parametrize("provider", ["native", "a"])
@pytest.mark.parametrize("donated", [0, 1])
def test_a_backward_pass_that_kept_what_is_donated_raises(
    state: Runtime, provider: str, donated: int, mode: str
) -> None:
    """A kernel writes memory past autograd, which would take the new values for the old ones without a word."""
    assert state is not None
    op: Any = ops.fused_add_rms_norm

    def past_autograd(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Write as a kernel does: .data has a version of its own."""
        del weight, epsilon, variance_size
        x.data.fill_(7)
        x_residual.data.fill_(7)
        return x, x_residual

    op.register_impl("a", inplace=True)(past_autograd)
    op.set_default(provider)
    leaf = torch.ones(2, 4, requires_grad=True)
    inputs = [torch.randn(2, 4), torch.randn(2, 4)]
    lost = (leaf * inputs[donated]).sum()
    with getattr(torch, mode)():
        op.maybe_inplace(*inputs, None, 1e-5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        lost.backward()
    with torch.inference_mode():
        made = [torch.randn(2, 4), torch.randn(2, 4)]
        op.maybe_inplace(*made, None, 1e-5)
    op.maybe_inplace(*made, None, 1e-5)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_without_grad_mode_maybe_inplace_donates(state: Runtime, add_provider: Any, mode: str) -> None:
    """Without grad mode a weight that could want a gradient does not, so the activations are written to."""
    assert state is not None
    op: Any = ops.fused_add_rms_norm
    add_provider(op, "a", 2.0, inplace=True)
    op.set_default("a")
    x, r, weight = torch.randn(2, 4), torch.randn(2, 4), torch.nn.Parameter(torch.ones(4))
    with getattr(torch, mode)():
        out, total = op.maybe_inplace(x, r, weight, 1e-5)
    assert (out.data_ptr(), total.data_ptr()) == (x.data_ptr(), r.data_ptr())
    assert not out.requires_grad


def test_the_results_may_be_changed_before_backward(state: Runtime) -> None:
    """Inputs are saved, not results: a result that is written to afterwards does no harm."""
    assert state is not None
    x = torch.randn(2, 4, requires_grad=True)
    out = ops.rms_norm(x, None, 1e-5)
    out.mul_(2)
    out.sum().backward()
    wanted = x.detach().clone().requires_grad_()
    (ops.rms_norm.declaration.native(wanted, None, 1e-5) * 2).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, wanted.grad)


def test_an_input_changed_before_backward_is_an_error(state: Runtime, add_provider: Any) -> None:
    """A saved input that was written to raises as everywhere in torch, rather than giving a wrong gradient."""
    assert state is not None
    add_provider(ops.rms_norm, "a", 1.0)
    ops.rms_norm.set_default("a")
    leaf = torch.randn(2, 4, requires_grad=True)
    x = leaf * 1
    out = ops.rms_norm(x, None, 1e-5)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_backward_twice(state: Runtime, add_provider: Any) -> None:
    """A retained graph gives the same gradient again."""
    assert state is not None
    add_provider(ops.rms_norm, "a", 1.0)
    ops.rms_norm.set_default("a")
    x = torch.randn(2, 4, requires_grad=True)
    loss = ops.rms_norm(x, None, 1e-5).sin().sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (second,) = torch.autograd.grad(loss, x)
    assert torch.equal(first, second)


def test_only_one_result_is_used(state: Runtime, add_provider: Any) -> None:
    """A result that nobody uses has no part in the gradient."""
    assert state is not None
    add_provider(ops.fused_add_rms_norm, "a", 1.0)
    ops.fused_add_rms_norm.set_default("a")
    x, r = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
    _, total = ops.fused_add_rms_norm(x, r, None, 1e-5)
    total.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(2, 4))
