"""Implementations of every kind go into a graph, and what comes out is right, contiguous and the graph's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from vllm_ir import ops, register_op
from vllm_ir.errors import EndlessLowering, UntraceableImplementation
from vllm_ir.isolation import isolated

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm
silu: Any = ops.silu_and_mul


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, a residual and a weight."""
    return torch.randn(5, 16), torch.randn(5, 16), torch.rand(16) + 0.5


def both(compiled: Any, function: Any, *inputs: Tensor, **how: Any) -> None:
    """Fail unless compiled and eager native agree and the inputs stay."""
    kept = [tensor.clone() for tensor in inputs]
    with torch.no_grad():
        got, wanted = compiled(function, **how)(*inputs), function(*inputs)
    for mine, theirs in zip(*map(torch.utils._pytree.tree_leaves, (got, wanted)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        assert mine.stride() == theirs.stride()
    assert all(map(torch.equal, inputs, kept))


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_an_argument_returned_as_it_is(compiled: Any, dynamic: bool) -> None:
    """A result that is an argument is copied where somebody else has the argument, and only there."""

    def same(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:  # noqa: ARG001
        """Return x."""
        return x

    rms.register_impl("probe")(same)

    def run(x: Tensor) -> Any:
        """Give an input, an intermediate that is read again, and one that is not."""
        y = x * 2
        one, two, three = rms(x, None, 1e-5), rms(y, None, 1e-5), rms(x * 3, None, 1e-5)
        two.add_(1)
        return one, two, three, y

    x = torch.randn(5, 16)
    with torch.no_grad():
        one, two, three, y = compiled(run, dynamic=dynamic)(x)
    for mine, theirs in ((one, x), (two, x * 2 + 1), (three, x * 3), (y, x * 2)):
        assert torch.equal(mine, theirs)
    assert one.data_ptr() != x.data_ptr()
    assert compiled.lowered[0].copies == 2


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("inductor", [False, True], ids=["lowered", "inductor"])
def test_results_that_lie_otherwise_than_natives(compiled: Any, inductor: bool) -> None:
    """Results in columns become rows, so that what was traced behind them stays right; the same tensor twice, two."""

    def columns(
        x: Tensor,
        x_residual: Tensor,
        weight: Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return one tensor in columns for both results."""
        del weight, epsilon, variance_size
        found = (x + x_residual).t().contiguous().t()
        return found, found

    fused.register_impl("probe")(columns)

    def run(x: Tensor, r: Tensor) -> Any:
        """Look at results as one row, and write to one of them."""
        out, total = fused(x, r, None, 1e-5)
        total.mul_(2)
        return out.view(-1), total.view(-1)

    x, r = torch.randn(5, 16), torch.randn(5, 16)
    with torch.no_grad():
        out, total = compiled(run, inductor=inductor)(x, r)
    torch.testing.assert_close(out, (x + r).view(-1))
    torch.testing.assert_close(total, 2 * (x + r).view(-1))


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("inductor", [False, True], ids=["lowered", "inductor"])
def test_tensors_made_inside(compiled: Any, inductor: bool) -> None:
    """An implementation may make tensors from numbers."""

    def made(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:  # noqa: ARG001
        """Multiply by numbers."""
        return x * torch.tensor([1.0, 2.0]).repeat(x.shape[-1] // 2) + torch.full((), epsilon)

    rms.register_impl("probe")(made)
    x = torch.randn(5, 16)
    with torch.no_grad():
        got = compiled(lambda x: rms(rms(x, None, 0.0), None, 0.0), inductor=inductor)(x)
    torch.testing.assert_close(got, x * torch.tensor([1.0, 4.0]).repeat(8))


@pytest.mark.parametrize("inductor", [False, True], ids=["lowered", "inductor"])
def test_implementations_of_other_ops(provide: Any, compiled: Any, inductor: bool) -> None:
    """An implementation may call ops: those are lowered, too, and what it reads again is not written over."""
    provide(fused, "inplace")

    def nested(x: Tensor) -> Tensor:
        """Call an op with an in-place implementation on tensors that are read again."""
        first, second = x.chunk(2, -1)
        y, z = first * 1, second * 1
        out, total = fused(y, z, None, 1e-5)
        out, total = fused(out, total + y, None, 1e-5)
        return out + total * 0 + z * 0 + torch.nn.functional.silu(first) * second - out  # type: ignore[no-any-return]

    silu.register_impl("probe")(nested)

    def run(x: Tensor) -> Any:
        """Call the outer op twice."""
        y = silu(x)
        return y, silu(torch.cat((y, y), -1))

    both(compiled, run, torch.randn(5, 16), inductor=inductor)
    if not inductor:
        assert set(compiled.lowered[0].selected) == {"silu_and_mul", "fused_add_rms_norm"}


@pytest.mark.usefixtures("state")
def test_implementations_that_call_each_other_without_end(compiled: Any) -> None:
    """An implementation that leads back to itself is an error that names the way."""

    def again(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
        """Call the op itself."""
        return rms(x, weight, epsilon, variance_size)  # type: ignore[no-any-return]

    rms.register_impl("probe")(again)
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(lambda x: rms(x, None, 1e-5))(torch.randn(5, 16))
    assert isinstance(caught.value.inner_exception, EndlessLowering)


@pytest.mark.parametrize("inductor", [False, True], ids=["lowered", "inductor"])
@pytest.mark.parametrize("kind", ["inplace", "functional"])
def test_branches_of_a_condition(provide: Any, compiled: Any, kind: str, inductor: bool) -> None:
    """Ops in the branches of a condition are lowered, and nothing that a branch is given is written to."""
    provide(fused, kind)

    def run(x: Tensor, r: Tensor, w: Tensor) -> Any:
        """Take one of two branches on tensors that are read afterwards."""

        def yes(x: Tensor, r: Tensor) -> Tensor:
            """Call the op on what is given and on what is made."""
            out, total = fused(x, r, w, 1e-5)
            more, _ = fused(out * 2, total, w, 1e-5)
            return more + out  # type: ignore[no-any-return]

        def no(x: Tensor, r: Tensor) -> Tensor:
            """Call it otherwise."""
            out, total = fused(x * 2, r, w, 1e-5)
            return out + total  # type: ignore[no-any-return]

        y = x * 2
        z: Any = torch.cond(x.sum() > r.sum(), yes, no, (y, r))
        return z, fused(z, y, w, 1e-5), r + 1

    x, r, w = arguments()
    both(compiled, run, x, r, w, inductor=inductor)
    both(compiled, run, r, x, w, inductor=inductor)
    if not inductor:
        for module in compiled.graphs:
            left = [n.target for m in module.modules() if hasattr(m, "graph") for n in m.graph.nodes]
            assert not any(str(target).startswith("vllm_ir") for target in left)
        assert len(compiled.lowered[0].selected["fused_add_rms_norm"]) == 4


def test_operations_of_others_that_write(provide: Any, compiled: Any) -> None:
    """Custom operations that write to tensors of the graph keep their place before and behind ours."""
    provide(fused, "inplace")

    @torch.library.custom_op("vllm_ir_tests::bump_", mutates_args={"x"})
    def bump(x: Tensor, by: float) -> None:
        """Add to a tensor."""
        x.add_(by)

    def run(x: Tensor, r: Tensor, w: Tensor) -> Any:
        """Write before, between and behind."""
        y, z = x * 2, r * 1
        bump(y, 1.0)
        out, total = fused(y, z, w, 1e-5)
        bump(y, 2.0)
        bump(out, 3.0)
        again, more = fused.maybe_inplace(out, total, w, 1e-5)
        return again, more, y

    for inductor in (False, True):
        both(compiled, run, *arguments(), inductor=inductor)


def test_a_functional_form_takes_the_place_of_copies(provide: Any, compiled: Any) -> None:
    """Where something must stay the functional form runs, elsewhere the in-place one; nothing is copied."""
    provide(fused, "both")

    def run(x: Tensor, r: Tensor, w: Tensor) -> Any:
        """Call on inputs, then on what nobody reads again."""
        out, total = fused(x, r, w, 1e-5)
        return fused(out, total, w, 1e-5)

    both(compiled, run, *arguments())
    assert compiled.count(torch.ops.aten.clone.default) == 0
    assert compiled.count(torch.ops.aten.copy_.default) == 2
    assert compiled.lowered[0].copies == 0


def test_fake_results_lie_where_results_do(provide: Any, compiled: Any) -> None:
    """What another compiler reads off the fake tensors is true: views of a result lie in its memory."""
    provide(fused, "inplace")

    def run(x: Tensor, r: Tensor, w: Tensor) -> Any:
        """Make views of results, twice."""
        out, total = fused(x * 1, r * 1, w, 1e-5)
        again, more = fused(out, total, w, 1e-5)
        return again.view(-1), more[1:]

    both(compiled, run, *arguments())
    graph = compiled.graphs[-1].graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        storage, parent = (n.meta["val"].untyped_storage()._cdata for n in (node, node.args[0]))
        assert storage == parent
    written = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert len({node.meta["val"].untyped_storage()._cdata for node in written}) == 2


def whole_natives(compiled: Any) -> int:
    """Return how many calls of native the last graph does not see into."""
    targets = [str(node.target) for node in compiled.graphs[-1].graph.nodes if node.op == "call_function"]
    return sum(target.startswith("vllm_ir_native.") for target in targets)


@pytest.mark.parametrize("variables", [{}, {"VLLM_BATCH_INVARIANT": "1"}], ids=["as usual", "batch-invariant"])
def test_native_stays_whole_where_batches_must_not_matter(compiled: Any, variables: dict[str, str]) -> None:
    """A compiler sums in an order of its own, so what native promises of batches holds only where it cannot see in."""
    rotate: Any = ops.rotary_embedding
    positions, cache = torch.arange(5), torch.rand(8, 8)

    def run(query: Tensor, key: Tensor) -> Any:
        """Turn by position."""
        return rotate(positions, query, key, 8, 8, cache, True)  # noqa: FBT003 - the op's own parameter

    with isolated(variables):
        both(compiled, run, torch.randn(5, 16), torch.randn(5, 16))
    assert whole_natives(compiled) == len(variables)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("exact", [True, False])
def test_native_stays_whole_where_bits_are_eagers(compiled: Any, exact: bool) -> None:
    """Exact graphs hide native from a compiler that sums in another order than eager."""
    x, _, weight = arguments()
    both(compiled, lambda x, weight: rms(x, weight, 1e-5), x, weight, exact=exact)
    assert whole_natives(compiled) == exact


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("declared", [False, True], ids=["functional", "inplace"])
def test_a_kernel_may_write_only_where_it_said(compiled: Any, declared: bool) -> None:
    """A write that a trace shows and no declaration does is told with its argument, and nobody's memory changes."""

    def scaled(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Write to the weight, through a view of it, or to an activation that was not declared."""
        del epsilon, variance_size
        assert weight is not None
        (weight.view(1, -1) if declared else x).mul_(2)
        return x + x_residual, x_residual.clone()

    fused.register_impl("probe", inplace=declared)(scaled)
    x, residual, weight = arguments()
    kept = x.clone(), weight.clone()
    with torch.no_grad(), pytest.raises(Exception, match=f"writes to its argument {'weight' if declared else 'x'!r}"):
        compiled(lambda x, r, w: fused(x * 1, r * 1, w, 1e-5))(x, residual, weight)
    assert torch.equal(x, kept[0])
    assert torch.equal(weight, kept[1])


def test_a_loop(provide: Any, compiled: Any) -> None:
    """Ops in the body of a loop are lowered, and what the body is given stays the loop's."""
    from torch._higher_order_ops.while_loop import while_loop

    provide(fused, "inplace")

    def run(x: Tensor) -> Any:
        """Add and normalise three times."""

        def body(count: Tensor, y: Tensor, kept: Tensor) -> Any:
            """Donate what the loop gives, and what was made."""
            out, total = fused.maybe_inplace(y, y * 2, None, 1e-5)
            return count + 1, out + total, kept + 1

        return while_loop(lambda count, _y, _kept: count < 3, body, (torch.tensor(0), x, x * 1))

    both(compiled, run, torch.randn(5, 16))
    assert compiled.lowered[0].selected["fused_add_rms_norm"] == {"fused_add_rms_norm": "probe"}


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("inductor", [False, True], ids=["lowered", "inductor"])
def test_results_in_a_list(provide: Any, compiled: Any, inductor: bool) -> None:
    """An op may return a tensor and a list of them; each is memory of its own, and may be donated by itself."""
    provide(fused, "inplace")

    @register_op
    def parted(x: Tensor, count: int) -> tuple[Tensor, list[Tensor]]:
        """Return the double, and copies of the parts."""
        return x * 2, [part.clone() for part in x.chunk(count)]

    @parted.register_impl("probe")
    def with_views(x: Tensor, count: int) -> tuple[Tensor, list[Tensor]]:
        """Return parts of one tensor, which nobody may write to as they are."""
        double = x + x
        return double, list((double * 0.5).chunk(count))

    assert with_views.provider == "probe"

    def run(x: Tensor) -> Any:
        """Donate one part and read a view of another, and of all of them."""
        double, parts = parted(x, 2)
        view = parts[1].view(-1)
        out, total = fused.maybe_inplace(parts[0], parts[1] * 2, None, 1e-5)
        return double, out, total, view + 1, parts[1]

    both(compiled, run, torch.randn(4, 16), inductor=inductor)


@pytest.mark.usefixtures("state")
def test_a_list_of_another_length(compiled: Any) -> None:
    """Is told as results of another kind."""

    @register_op
    def halves(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the double, and copies of two parts."""
        return x * 2, [part.clone() for part in x.chunk(2)]

    @halves.register_impl("probe")
    def quarters(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return four of them."""
        return x * 2, [part.clone() for part in x.chunk(4)]

    assert quarters.provider == "probe"
    with pytest.raises(Exception, match=r"Its results are .*\[1, 16\]\], native's are .*\[2, 16\]\]: ") as caught:
        compiled(lambda x: halves(x)[0])(torch.randn(4, 16))
    assert isinstance(caught.value.inner_exception, UntraceableImplementation)  # type: ignore[attr-defined]
