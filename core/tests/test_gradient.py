"""Gradients are native's: of every order, for every differentiable input, whoever runs the forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.autograd.forward_ad
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from vllm_ir import ops, register_op

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime

FLOAT = torch.float64


@dataclass(frozen=True, slots=True)
class Case:
    """An op as a function of its differentiable arguments.

    Attributes:
        name: the op's name, and what is special about the call.
        leaves: makes those arguments.
        arguments: all arguments of the op from those.
    """

    name: str
    leaves: Callable[[], tuple[Tensor, ...]]
    arguments: Callable[..., tuple[Any, ...]]

    @property
    def op(self) -> Any:
        """The op."""
        return getattr(ops, self.name.split(" ")[0])


def rows(*shape: int) -> Tensor:
    """Return values of a normal distribution that want a gradient, the same at each call."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=FLOAT, generator=generator).requires_grad_()


def cache() -> Tensor:
    """Return cosines and sines for eight positions and four elements."""
    angles = torch.outer(torch.arange(8, dtype=FLOAT), torch.tensor([1.0, 0.1], dtype=FLOAT))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


POSITIONS = torch.tensor([3, 0, 7])
CASES = (
    Case("rms_norm", lambda: (rows(3, 4), rows(4)), lambda x, w: (x, w, 1e-5)),
    Case("rms_norm without weight", lambda: (rows(3, 4),), lambda x: (x, None, 1e-5)),
    Case("rms_norm with variance_size", lambda: (rows(3, 4), rows(4)), lambda x, w: (x, w, 1e-5, 3)),
    Case(
        "fused_add_rms_norm",
        lambda: (rows(2, 4), rows(2, 4).detach().cos().requires_grad_(), rows(4)),
        lambda x, r, w: (x, r, w, 1e-5),
    ),
    Case("fused_add_rms_norm of one tensor", lambda: (rows(2, 4),), lambda x: (x, x, None, 1e-5)),
    Case("silu_and_mul", lambda: (rows(3, 4),), lambda x: (x,)),
    Case("gelu_and_mul", lambda: (rows(3, 4),), lambda x: (x,)),
    Case("gelu_and_mul by tanh", lambda: (rows(3, 4),), lambda x: (x, "tanh")),
    Case(
        "rotary_embedding",
        lambda: (rows(3, 8), rows(3, 6)[:, :4].detach().requires_grad_()),
        lambda q, k: (POSITIONS, q, k, 4, 4, cache(), True),
    ),
    Case(
        "rotary_embedding of pairs, with its cache",
        lambda: (rows(3, 2, 6), rows(3, 1, 6), rows(8, 4)),
        lambda q, k, c: (POSITIONS, q, k, 6, 4, c, False),
    ),
)
WAYS = ("native", "provider", "inplace provider", "torch op", "maybe_inplace", "maybe_inplace with an inplace provider")


def way_of(case: Case, way: str, add_provider: Any) -> Any:
    """Return what to call for one way of running the forward pass."""
    op = case.op
    if "provider" in way:
        add_provider(op, "a", 1.0, inplace="inplace provider" in way)
        op.set_default("a")
    if way == "torch op":
        return op.torch_op
    return op.maybe_inplace if way.startswith("maybe_inplace") else op


CALLS = [
    pytest.param(case, way, id=f"{case.name}-{way}")
    for case in CASES
    for way in WAYS
    if "inplace" not in way or case.op.allow_inplace
]


@pytest.mark.parametrize(("case", "way"), CALLS)
def test_gradcheck(case: Case, way: str, add_provider: Any) -> None:
    """First derivatives are those of finite differences."""
    call = way_of(case, way, add_provider)
    assert torch.autograd.gradcheck(lambda *leaves: call(*case.arguments(*leaves)), case.leaves())


@pytest.mark.parametrize(("case", "way"), CALLS)
def test_gradgradcheck(case: Case, way: str, add_provider: Any) -> None:
    """Second derivatives are those of finite differences."""
    call = way_of(case, way, add_provider)
    assert torch.autograd.gradgradcheck(lambda *leaves: call(*case.arguments(*leaves)), case.leaves())


def derivatives(function: Callable[..., Any], leaves: tuple[Tensor, ...]) -> list[Tensor]:
    """Return first and second derivatives of a scalar of all results."""
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    loss = torch.stack([(i + 1) * result.sin().sum() for i, result in enumerate(results)]).sum()
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    second = torch.autograd.grad(torch.stack([grad.pow(2).sum() for grad in first]).sum(), leaves)
    return [*first, *second]


@pytest.mark.parametrize(("case", "way"), CALLS)
def test_derivatives_are_natives(case: Case, way: str, add_provider: Any) -> None:
    """First and second derivatives are native's own, to the last bits, and inputs are unchanged."""
    call = way_of(case, way, add_provider)
    leaves = case.leaves()
    kept = [leaf.detach().clone() for leaf in leaves]
    native = case.op.declaration.native
    got = derivatives(lambda *values: call(*case.arguments(*values)), leaves)
    wanted = derivatives(lambda *values: native(*case.arguments(*values)), case.leaves())
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    assert all(torch.equal(leaf, before) for leaf, before in zip(leaves, kept, strict=True))


@pytest.mark.parametrize(("case", "way"), CALLS)
def test_a_provider_runs_the_forward_pass(case: Case, way: str, add_provider: Any) -> None:
    """What a gradient is wanted of is calculated by the provider that must run."""
    op = case.op
    calls = add_provider(op, "b", 2.0, inplace=op.allow_inplace)
    op.set_default("b")
    target = op.maybe_inplace if way.startswith("maybe_inplace") else op
    arguments = case.arguments(*case.leaves())
    got, wanted = target(*arguments), op.declaration.native(*arguments)
    for mine, theirs in zip(pair(got), pair(wanted), strict=True):
        assert mine.requires_grad
        torch.testing.assert_close(mine.detach(), theirs.detach() * 2)
    assert len(calls) == 1


def pair(results: Any) -> tuple[Tensor, ...]:
    """Return results as a tuple."""
    return results if isinstance(results, tuple) else (results,)


def tangents(function: Callable[..., Any], leaves: tuple[Tensor, ...]) -> list[Tensor | None]:
    """Return the tangents of all results in forward mode, outside the transforms of torch.func."""
    with torch.autograd.forward_ad.dual_level() as level:
        duals = [
            torch.autograd.forward_ad.make_dual(leaf.detach().clone(), leaf.detach().cos(), level=level)
            for leaf in leaves
        ]
        results = pair(function(*duals))
        return [torch.autograd.forward_ad.unpack_dual(result, level=level).tangent for result in results]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize(("case", "way"), CALLS)
def test_a_tangent_goes_through_any_provider(case: Case, way: str, mode: Any, add_provider: Any) -> None:
    """A kernel would drop it without a word, so native runs, and its tangents are those of all results."""
    call = way_of(case, way, add_provider)
    native = case.op.declaration.native
    with mode():
        got = tangents(lambda *values: call(*case.arguments(*values)), case.leaves())
        wanted = tangents(lambda *values: native(*case.arguments(*values)), case.leaves())
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine is not None
        torch.testing.assert_close(mine, theirs)


def test_after_a_tangent_the_provider_runs_again(add_provider: Any) -> None:
    """Only while a level of forward mode is open does native take its place."""
    calls = add_provider(ops.rms_norm, "a", 2.0)
    ops.rms_norm.set_default("a")
    x = rows(2, 4).detach()
    with torch.autograd.forward_ad.dual_level():
        ops.rms_norm(x, None, 1e-5)
    assert calls == []
    ops.rms_norm(x, None, 1e-5)
    assert len(calls) == 1


def gather(
    items: list[torch.Tensor],
    x: torch.Tensor,
    times: int = 2,
    sign: str = "plus",
    keep: bool = True,
    scale: float = 0.5,
    shift: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return a sum of a list of tensors and of one more."""
    total = x * scale if keep else x * 0
    for i, item in enumerate(items):
        total = total + (item * (i + 1)).sin() * times
    total = total if shift is None else total + shift * x
    return total if sign == "plus" else -total


@pytest.mark.parametrize("provider", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"times": 3}, {"sign": "minus"}, {"keep": False}, {"scale": 2.0, "shift": "leaf"}, {"times": 2}],
    ids=str,
)
def test_lists_values_and_defaults(state: Runtime, add_provider: Any, provider: bool, options: dict[str, Any]) -> None:
    """Gradients reach the tensors of a list, and go past numbers, texts and flags, given or left out."""
    assert state is not None
    op = register_op(name="gather_for_gradients")(gather)
    if provider:
        add_provider(op, "a", 1.0)
        op.set_default("a")
    found = []
    for call in (op, gather):
        items = [rows(2, 3), rows(2, 3).detach().cos(), rows(2, 3).detach().sin().requires_grad_()]
        x, shift = rows(2, 3).detach().exp().requires_grad_(), rows(3).detach().requires_grad_()
        given = {**options, "shift": shift} if "shift" in options else options
        leaves = [items[0], items[2], x, *([shift] if "shift" in options else [])]
        result: Any = call(items, x, **given)
        first = torch.autograd.grad(result.pow(3).sum(), leaves, create_graph=True)
        loss = torch.stack([grad.pow(2).sum() for grad in first]).sum()
        second = torch.autograd.grad(loss, leaves, allow_unused=True)
        found.append([*first, *second])
    for mine, theirs in zip(*found, strict=True):
        assert (mine is None) is (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("inplace", [False, True])
def test_compiled_gradients(case: Case, add_provider: Any, backend: str, inplace: bool) -> None:
    """Compiled training gives native's gradients with a provider that has none of its own, never None."""
    torch._dynamo.reset()
    op = case.op
    add_provider(op, "a", 1.0, inplace=inplace and op.allow_inplace)
    op.set_default("a")
    call = op.maybe_inplace if inplace and op.allow_inplace else op

    def run(*leaves: Tensor) -> Any:
        """Call the op on intermediate tensors."""
        return pair(call(*case.arguments(*[leaf * 2 for leaf in leaves])))

    def native(*leaves: Tensor) -> Any:
        """Call native on intermediate tensors."""
        return pair(op.declaration.native(*case.arguments(*[leaf * 2 for leaf in leaves])))

    compiled: Any = torch.compile(run, backend=backend, fullgraph=True)
    grads = []
    for function in (compiled, native):
        leaves = case.leaves()
        sum(result.sin().sum() for result in function(*leaves)).backward()
        grads.append([leaf.grad for leaf in leaves])
    for mine, theirs in zip(*grads, strict=True):
        assert mine is not None
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("overload", ["default", "maybe_inplace"])
def test_the_first_call_of_all_may_be_checkpointed(state: Runtime, overload: str) -> None:
    """Checkpointing runs a call twice and wants the same saved tensors, also of the call that connects chains."""
    assert state is not None
    op: Any = ops.fused_add_rms_norm
    call = op if overload == "default" else op.maybe_inplace
    x, residual, weight = (torch.randn(4, 8, requires_grad=True) for _ in range(3))

    def block(x: Tensor, residual: Tensor) -> Tensor:
        """Run the op on what is not a leaf."""
        out, total = call(x * 2, residual * 2, weight[0], 1e-5)
        return out.sin() + total  # type: ignore[no-any-return]

    checkpoint(block, x, residual, use_reentrant=False).sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
