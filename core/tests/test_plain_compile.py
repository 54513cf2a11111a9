"""Plain torch.compile gives eager's results for every op, whoever runs, in inference and in training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_ir.runtime import Runtime

HIDDEN = 16
NAMES = ("fused_add_rms_norm", "gelu_and_mul", "rms_norm", "rotary_embedding", "silu_and_mul")
"""The ops of the block below."""


@pytest.fixture(autouse=True)
def fresh_dynamo(state: Runtime) -> Iterator[None]:
    """Forget what Dynamo compiled for another test."""
    assert state is not None
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def cache() -> Tensor:
    """Return cosines and sines for heads of eight elements."""
    angles = torch.outer(torch.arange(64.0), torch.tensor([1.0, 0.5, 0.25, 0.125]))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


class Layer(torch.nn.Module):
    """Every op once, in the order of a decoder layer, with matrix products between, so that buffers are reused."""

    def __init__(self, *, inplace: bool) -> None:
        super().__init__()
        self.inplace = inplace
        self.first, self.second = (torch.nn.Parameter(torch.rand(HIDDEN) + 0.5) for _ in range(2))
        self.query, self.key = (torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2))
        self.up, self.down = torch.nn.Linear(HIDDEN, 2 * HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)
        self.register_buffer("cache", cache())

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Run the layer; with `inplace` everything that may be donated is."""
        fused: Any = ops.fused_add_rms_norm
        rotate: Any = ops.rotary_embedding
        if self.inplace:
            fused, rotate = fused.maybe_inplace, rotate.maybe_inplace
        normed = ops.rms_norm(x, self.first, 1e-5)
        query, key = rotate(positions, self.query(normed), self.key(normed), 8, 8, self.cache, True)  # noqa: FBT003
        mixed = torch.tanh(query @ key.transpose(-1, -2)) @ normed
        normed, residual = fused(mixed, x * 1, self.second, 1e-5)
        gated = ops.silu_and_mul(self.up(normed)) + ops.gelu_and_mul(self.up(residual))
        normed, total = fused(self.down(gated), residual * 1, None, 1e-5)
        return normed @ self.query.weight, total


def provide(add_provider: Any, kind: str, factor: float = 1.5) -> dict[str, list[Any]]:
    """Give every op a provider of that kind, and return their calls."""
    if kind == "native":
        return {}
    calls = {}
    for name in NAMES:
        op: Any = getattr(ops, name)
        calls[name] = add_provider(op, "a", factor, inplace=kind == "inplace" and op.allow_inplace)
        op.set_default("a")
    return calls


def arguments(tokens: int = 5) -> tuple[Tensor, Tensor]:
    """Return rows and positions."""
    return torch.randn(tokens, HIDDEN), torch.randint(0, 64, (tokens,))


def check(layer: Layer, compiled: Any, tokens: int = 5) -> None:
    """Fail unless compiled and eager agree and leave the rows as they are."""
    x, positions = arguments(tokens)
    kept = x.clone()
    with torch.no_grad():
        wanted, got = layer(x, positions), compiled(x, positions)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert torch.equal(x, kept)


@pytest.mark.parametrize(
    ("kind", "inplace"), [("native", True), ("functional", False), ("inplace", False), ("inplace", True)]
)
def test_inference(add_provider: Any, kind: str, inplace: bool) -> None:
    """Inductor's results are eager's, and its buffers never meet a donated one."""
    calls = provide(add_provider, kind)
    layer = Layer(inplace=inplace)
    compiled = torch.compile(layer, fullgraph=True)
    check(layer, compiled)
    for name in calls:
        calls[name].clear()
    check(layer, compiled)
    # Half of these calls are eager's, the other half the graph's.
    each = {"fused_add_rms_norm": 4}
    assert {name: len(found) for name, found in calls.items()} == {name: each.get(name, 2) for name in calls}


def test_dynamic_batch(add_provider: Any) -> None:
    """One dynamic graph of Inductor serves other batches, with an in-place provider and everything donated."""
    provide(add_provider, "inplace")
    layer = Layer(inplace=True)
    compiled: Any = torch.compile(layer, fullgraph=True, dynamic=True)
    for tokens in (5, 9, 2):
        check(layer, compiled, tokens)


@pytest.mark.parametrize("kind", ["native", "functional", "inplace"])
@pytest.mark.parametrize("inplace", [False, True])
def test_inference_without_inductor(add_provider: Any, kind: str, inplace: bool) -> None:
    """What AOTAutograd makes is right for static and for dynamic batches, also for none and one."""
    provide(add_provider, kind)
    layer = Layer(inplace=inplace)
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for tokens in (5, 7, 1, 0) if dynamic else (5,):
            check(layer, compiled, tokens)


def gradients(layer: Layer, run: Any, x: Tensor, positions: Tensor) -> list[Tensor | None]:
    """Return the gradients of rows and parameters."""
    layer.zero_grad()
    rows = x.clone().requires_grad_()
    out, total = run(rows, positions)
    (out.sin().sum() + total.cos().sum()).backward()
    return [rows.grad, *[parameter.grad for parameter in layer.parameters()]]


@pytest.mark.parametrize(
    ("backend", "kind", "inplace"),
    [
        ("inductor", "native", True),
        ("inductor", "inplace", True),
        *[("aot_eager", kind, inplace) for kind in ("native", "functional", "inplace") for inplace in (False, True)],
    ],
)
def test_training(add_provider: Any, backend: str, kind: str, inplace: bool) -> None:
    """Compiled gradients are those of eager native, none is missing, and a provider has run the forward pass."""
    layer = Layer(inplace=inplace)
    x, positions = arguments()
    wanted = gradients(layer, layer, x, positions)
    calls = provide(add_provider, kind, 1.0)
    got = gradients(layer, torch.compile(layer, fullgraph=True, backend=backend), x, positions)
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine is not None
        assert theirs is not None
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert all(calls.values())


def test_a_result_never_shares_a_buffer(add_provider: Any) -> None:
    """Inductor hands the memory of a donated tensor on, so a result must not lie in it: seen as wrong values."""
    op: Any = ops.fused_add_rms_norm
    add_provider(op, "a", 1.0, inplace=True)
    op.set_default("a")
    matrix = torch.randn(64, 64)

    def run(x: Tensor, r: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Donate two intermediate tensors, and read both results again after many other buffers."""
        out, total = op.maybe_inplace(x + 1, r * 2, weight, 1e-5)
        one, two = torch.mm(total.sin(), matrix), torch.mm(out.cos(), matrix)
        three, four = torch.mm(one.sin(), matrix), torch.mm(two.cos(), matrix)
        return out + three + one, total - four + two

    compiled: Any = torch.compile(run, fullgraph=True)
    inputs = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64)
    with torch.no_grad():
        for mine, theirs in zip(compiled(*inputs), run(*inputs), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_a_scope_reaches_what_stayed_whole(add_provider: Any) -> None:
    """An op that Inductor could not see into runs the provider that holds at the call, without compiling anew."""
    op: Any = ops.fused_add_rms_norm
    add_provider(op, "a", 2.0, inplace=True)
    op.set_default("a")
    counter = torch._dynamo.utils.counters
    counter.clear()

    def run(x: Tensor, r: Tensor) -> Tensor:
        """Donate two intermediate tensors."""
        out, total = op.maybe_inplace(x + 1, r * 2, None, 1e-5)
        return out + total  # type: ignore[no-any-return]

    compiled: Any = torch.compile(run, fullgraph=True)
    x, r = torch.randn(4, 8), torch.randn(4, 8)
    native = sum(op.declaration.native(x + 1, r * 2, None, 1e-5))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, r), native * 2)
        with op.set_priority("native"):
            torch.testing.assert_close(compiled(x, r), native)
        torch.testing.assert_close(compiled(x, r), native * 2)
    assert counter["stats"]["unique_graphs"] == 1
