"""Before AOTAutograd: donating calls become functional ones, and what is read after its donation is an error."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm_ir import ops
from vllm_ir.errors import UsedAfterDonation

fused: Any = ops.fused_add_rms_norm
rotary: Any = ops.rotary_embedding


def inputs() -> tuple[Tensor, Tensor]:
    """Return rows and a residual."""
    return torch.randn(4, 16), torch.randn(4, 16)


def directly(x: Tensor, r: Tensor) -> Any:
    """Read a donated input."""
    out, _ = fused.maybe_inplace(x, r, None, 1e-5)
    return out + x


def through_a_view(x: Tensor, r: Tensor) -> Any:
    """Read a donated intermediate tensor through a view that was made before."""
    y = x * 2
    view = y.view(-1)
    out, _ = fused.maybe_inplace(r, y, None, 1e-5)
    return out + view.sum()


def as_a_view(x: Tensor, r: Tensor) -> Any:
    """Donate a view and read the tensor."""
    y = x * 2
    out, _ = fused.maybe_inplace(y.view(4, 16), r, None, 1e-5)
    return out * y


def as_output(x: Tensor, r: Tensor) -> Any:
    """Return what was donated."""
    y = x * 2
    out, _ = fused.maybe_inplace(y, r, None, 1e-5)
    return out, y


def in_place(x: Tensor, r: Tensor) -> Any:
    """Write to what was donated."""
    out, _ = fused.maybe_inplace(x, r, None, 1e-5)
    r.add_(1)
    return out


def twice(x: Tensor, r: Tensor) -> Any:
    """Donate one tensor to two calls."""
    out, _ = fused.maybe_inplace(x, r, None, 1e-5)
    more, _ = fused.maybe_inplace(out, r, None, 1e-5)
    return more


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("function", "argument", "user"),
    [
        (directly, "x", "add"),
        (through_a_view, "x_residual", "sum"),
        (as_a_view, "x", "mul"),
        (as_output, "x", "output"),
        (in_place, "x_residual", "add_"),
        (twice, "x_residual", "rotary|fused_add_rms_norm|maybe_inplace"),
    ],
)
def test_use_after_donation(compiled: Any, function: Any, argument: str, user: str, dynamic: bool) -> None:
    """The error names the argument, both nodes and the user's lines, in a graph that no provider is asked about."""
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(function, provider=None, dynamic=dynamic)(*inputs())
    error = caught.value.inner_exception
    assert isinstance(error, UsedAfterDonation)
    assert (error.op, error.argument) == ("fused_add_rms_norm", argument)
    assert any(name in error.user for name in user.split("|"))
    assert error.node
    if error.user != "the graph's output":
        assert f"in {function.__name__}" in error.used
    assert "test_functionalization.py" in error.where
    assert "maybe_inplace(" in error.where
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - made above


def test_sizes_may_be_asked_for(compiled: Any) -> None:
    """What does not depend on values may be asked of a donated tensor, in a dynamic graph, too."""

    def run(x: Tensor, r: Tensor) -> Any:
        """Ask for a size after the donation."""
        y = torch.cat((x, x))
        out, total = fused.maybe_inplace(y, torch.cat((r, r)), None, 1e-5)
        return out.view(y.shape[0] * y.size(1)), total, y.dtype

    x, r = inputs()
    with torch.no_grad():
        assert compiled(run, provider=None, dynamic=True)(x, r)[0].shape == (128,)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("heads", [False, True], ids=["rows", "heads"])
def test_value_of_a_packed_projection_may_be_read(compiled: Any, dynamic: bool, heads: bool) -> None:
    """Query and key may be donated while value, which lies beside them, is read afterwards."""
    angles = torch.zeros(8, 4)

    def run(qkv: Tensor) -> Any:
        """Rotate in place as decoders do."""
        q, k, v = (qkv * 1).split((16, 8, 8), dim=-1)
        if heads:
            q, k, v = q.unflatten(-1, (4, 4)), k.unflatten(-1, (2, 4)), v.unflatten(-1, (2, 4))
        q, k = rotary.maybe_inplace(torch.arange(qkv.shape[0]), q, k, 4, 4, angles, True)  # noqa: FBT003
        return q, k, v * 2

    qkv = torch.randn(6, 32)
    with torch.no_grad():
        for mine, theirs in zip(compiled(run, provider=None, dynamic=dynamic)(qkv), run(qkv), strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", ["inplace", "functional"])
def test_training_donates_nothing(provide: Any, compiled: Any, kind: str) -> None:
    """In a graph that is differentiated inputs stay, and gradients are those of eager native."""
    provide(fused, kind)

    def run(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        """Donate everything, and save results for backward."""
        y = torch.tanh(x)
        out, total = fused.maybe_inplace(y * 2, r, w, 1e-5)
        again, more = fused.maybe_inplace(out.sin(), total * out, w, 1e-5)
        return (again.cos() * more).sum()  # type: ignore[no-any-return]

    sources = [torch.randn(4, 16), torch.randn(4, 16), torch.rand(16) + 0.5]
    mine, theirs = ([source.clone().requires_grad_() for source in sources] for _ in range(2))
    compiled(run)(*mine).backward()
    run(*theirs).backward()
    for one, other, source in zip(mine, theirs, sources, strict=True):
        assert torch.equal(one, source)
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_a_parameter_is_never_donated(provide: Any, compiled: Any) -> None:
    """A module's parameter stays what it is when it is given to a donating call."""
    provide(fused, "inplace")

    class Model(torch.nn.Module):
        """Donates its parameter."""

        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.ones(4, 16))

        def forward(self, x: Tensor) -> Any:
            """Add it and normalise."""
            return fused.maybe_inplace(x * 1, self.bias, None, 1e-5)

    model = Model()
    with torch.no_grad():
        compiled(model)(torch.randn(4, 16))
    assert torch.equal(model.bias, torch.ones(4, 16))
    assert compiled.lowered[0].copies == 1


def test_two_graphs_that_differ_in_donations_do_not_share_an_artefact(provide: Any, compiled: Any) -> None:
    """With the caches on, a graph that does not donate is not served what was compiled for one that does."""
    provide(fused, "inplace")

    def gives(x: Tensor, r: Tensor) -> Any:
        """Donate both."""
        return fused.maybe_inplace(x, r, None, 1e-5)

    def keeps(x: Tensor, r: Tensor) -> Any:
        """Donate nothing."""
        return fused(x, r, None, 1e-5)

    with torch._inductor.config.patch(force_disable_caches=False, fx_graph_cache=True), torch.no_grad():
        for function, kept in ((gives, False), (keeps, True), (gives, False), (keeps, True)):
            torch._dynamo.reset()
            x, r = inputs()
            before = x.clone(), r.clone()
            compiled(function, inductor=True)(x, r)
            assert (torch.equal(x, before[0]), torch.equal(r, before[1])) == (kept, kept)
