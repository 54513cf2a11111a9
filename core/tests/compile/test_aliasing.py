"""Compiled graphs give eager's values and leave the caller's tensors as eager does, however memory is shared.

Each case is a function of x, r [tokens, 16] and w [16]. Eager runs native, which writes nothing; what a case donates of
its inputs may hold anything afterwards, everything else must be as eager leaves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import Tensor
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 16
Case = Any
rms_norm: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm
rotary: Any = ops.rotary_embedding
CASES: dict[str, Given] = {}


class Given(NamedTuple):
    """A case: the function, which inputs it donates, and how many copies an in-place provider needs there."""

    function: Callable[..., Any]
    donated: tuple[int, ...]
    copies: int | None


def case(*, donates: tuple[int, ...] = (), copies: int | None = None) -> Callable[..., Any]:
    """Add a function to the table."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        """Add it under its name."""
        CASES[function.__name__] = Given(function, donates, copies)
        return function

    return add


def cache() -> Tensor:
    """Return cosines and sines for heads of four elements."""
    angles = torch.outer(torch.arange(64.0), torch.tensor([1.0, 0.3]))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


CACHE = cache()


@case(copies=2)
def nothing_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Call the functional form on inputs."""
    return fused(x, r, w, 1e-5)


@case(donates=(0, 1), copies=0)
def inputs_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate both inputs."""
    return fused.maybe_inplace(x, r, w, 1e-5)


@case(donates=(1,), copies=0)
def residual_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate an intermediate tensor and an input."""
    out, total = fused.maybe_inplace(x * 2, r, w, 1e-5)
    return out, total


@case(copies=0)
def intermediates(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Let the functional form have tensors that nobody reads any more."""
    return fused(x * 2, r + 1, w, 1e-5)


@case(copies=1)
def read_afterwards(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Read an activation again behind the call."""
    y, z = x * 2, r * 3
    out, total = fused(y, z, w, 1e-5)
    return out + y, total


@case(copies=1)
def returned_activation(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Return an activation beside the results."""
    y, z = x * 2, r * 3
    return y, fused(y, z, w, 1e-5)


@case(copies=1)
def read_through_a_view(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Read an activation afterwards through a view that was made before."""
    y, z = x * 2, r * 3
    view = y.view(-1)
    out, total = fused(y, z, w, 1e-5)
    return view.sum(), out, total


@case(copies=1)
def view_of_an_intermediate(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Give the op a view of what is read afterwards."""
    y, z = x * 2, r * 3
    out, total = fused(y.view(-1, WIDTH), z, w, 1e-5)
    return out, total, y + 1


@case(donates=(0, 1), copies=0)
def view_of_an_input_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate views of inputs."""
    out, total = fused.maybe_inplace(x.view(-1, WIDTH), r.view(-1, WIDTH), w, 1e-5)
    return out + 1, total


@case(copies=0)
def own_clone_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate the user's own clones, which are there to be overwritten in place of the inputs."""
    return fused.maybe_inplace(x.clone(), r.clone(), w, 1e-5)


@case()
def own_clone_donated_and_input_read(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate clones and read the inputs again."""
    out, total = fused.maybe_inplace(x.clone(), r.clone(), w, 1e-5)
    return out + x, total - r


@case()
def clone_of_a_view_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate a view of a clone of an input."""
    out, total = fused.maybe_inplace(x.clone().view(-1, WIDTH), r.view(-1).clone().view(-1, WIDTH), w, 1e-5)
    return out, total


@case()
def two_equal_clones(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate two clones of one input, which a compiler may find to be the same."""
    one, two = x.clone(), x.clone()
    first, _ = fused.maybe_inplace(one, r * 0, w, 1e-5)
    second, _ = fused.maybe_inplace(two, r * 3, w, 1e-5)
    return first, second


@case()
def same_tensor_twice(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Give one tensor as both activations."""
    y = x * 2
    return *fused(y, y, w, 1e-5), *fused(r, r, w, 1e-5)


@case()
def overlapping_views(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Give two views that have rows in common."""
    y = torch.cat((x, r))
    return fused(y[1:], y[:-1], w, 1e-5)


@case()
def keyword_arguments(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Name every argument, in another order."""
    y = x * 2
    out, total = fused(weight=w, epsilon=1e-5, x_residual=y, x=r)
    return out, total, y


@case(donates=(0,))
def keyword_arguments_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate by keyword."""
    return fused.maybe_inplace(epsilon=1e-5, x_residual=x, x=r * 1, weight=w)


@case()
def transposed(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Give tensors that do not lie row by row; results do."""
    y = x.t().contiguous().t()
    out, total = fused(y, r.t().contiguous().t(), w, 1e-5)
    return out.view(-1), total.view(-1)


@case()
def transposed_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate what does not lie row by row, and look at results as one row."""
    out, total = fused.maybe_inplace((x * 2).t().contiguous().t(), r * 1, w, 1e-5)
    return out.view(-1) + 1, total.view(-1) + 1


@case(donates=(0,))
def strided_input_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate every other column of an input."""
    out, total = fused.maybe_inplace(x[:, ::2], (r * 1)[:, ::2], w[::2], 1e-5)
    return out.view(-1), total.view(-1)


@case()
def expanded(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Give a row that stands for all of them."""
    out, total = fused((x[:1] * 2).expand(r.shape[0], WIDTH), r, w, 1e-5)
    return out, total


@case()
def expanded_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate a row that stands for all of them, made inside."""
    out, total = fused.maybe_inplace((x[:1] * 2).expand(r.shape[0], WIDTH), r * 1, w, 1e-5)
    return out, total


@case()
def tensor_lists(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Take activations out of lists, and put results into some."""
    left, right = torch.split(torch.cat((x, r), -1), WIDTH, dim=-1)
    out, total = fused(left, right, w, 1e-5)
    top, bottom = torch.stack((out, total)).unbind(0)
    out, total = fused(top, bottom, w, 1e-5)
    return torch.cat((out, total)), left


@case()
def foreach(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Take activations out of what works on lists of tensors."""
    y, z = torch._foreach_add([x, r], 1.0)
    out, total = fused(y, z, w, 1e-5)
    torch._foreach_mul_([out, total], 2.0)
    return out, total


@case()
def rows_of_one_tensor(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate a part of the rows and read the others."""
    y = torch.cat((x, r)) * 2
    upper, lower = y.chunk(2)
    out, total = fused.maybe_inplace(upper, r * 1, w, 1e-5)
    return out, total, lower + 1


@case()
def chunked_qkv(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Turn query and key of a packed projection in place, and read value: they have no element in common."""
    q, k, v = torch.cat((x, r, x + r), -1).chunk(3, -1)
    positions = torch.arange(x.shape[0])
    q, k = rotary.maybe_inplace(positions, q, k, 4, 4, CACHE, True)  # noqa: FBT003
    return q + v, k, w + 1


@case(donates=(0,))
def chunked_input(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate halves of an input, as heads, and read another input."""
    q, k = x.chunk(2, -1)
    positions = torch.arange(x.shape[0])
    q, k = rotary.maybe_inplace(positions, q.unflatten(-1, (2, 4)), k.unflatten(-1, (2, 4)), 4, 4, CACHE, False)  # noqa: FBT003
    return q.flatten(1), k.flatten(1), r + w


@case()
def returned_clone(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Return a clone of an input, and one of a result."""
    out, total = fused(x * 1, r * 1, w, 1e-5)
    return x.clone(), out, out.clone(), total


@case()
def views_of_results(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Return results and views of them."""
    out, total = fused(x * 1, r * 1, w, 1e-5)
    return out, out.view(-1), total[1:], total.t()


@case()
def results_that_are_read_and_given_again(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Read a result that the next call gets as its activation."""
    out, total = fused(x * 1, r * 1, w, 1e-5)
    again, more = fused(out, total, w, 1e-5)
    return again, more, out


@case()
def input_written_elsewhere(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Add to an input before and after it is an activation."""
    x.add_(1)
    out, total = fused(x, r, w, 1e-5)
    x.mul_(2)
    return out + x, total


@case()
def input_overwritten_by_a_result(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Copy a result over an input that was the activation."""
    out, total = fused(x * 1, r, w, 1e-5)
    r.copy_(total)
    x[1:, 3:5] = out[1:, :2]
    return out


@case(donates=(1,))
def written_and_then_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Write to an input and donate it."""
    r.add_(x)
    return fused.maybe_inplace(x * 1, r, w, 1e-5)


@case()
def activation_written_afterwards(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Write to an intermediate activation behind the call, and to a result."""
    y = x * 2
    out, total = fused(y, r, w, 1e-5)
    y.add_(out)
    out.mul_(3)
    total[:, 0] = 5.0
    return y, out, total


@case()
def parameter_donated(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Donate a parameter, which is nobody's to give."""
    return fused.maybe_inplace(x * 1, PARAMETER + r[:1] * 0, w, 1e-5), fused.maybe_inplace(x * 2, PARAMETER, w, 1e-5)


PARAMETER = torch.nn.Parameter(torch.ones(5, WIDTH), requires_grad=False)


@case(donates=(1,), copies=0)
def three_layers(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Carry a donated residual through three layers, as decoders do."""
    y = x * 2
    for _ in range(3):
        y, r = fused.maybe_inplace(y, r, w, 1e-5)
        y = torch.tanh(y)
    return y, r


@case(copies=1)
def three_layers_without_donation(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Carry a residual that is the caller's: one copy, then it is the graph's."""
    y = x * 2
    for _ in range(3):
        y, r = fused(y, r, w, 1e-5)
        y = torch.tanh(y)
    return y, r


@case()
def other_ops_between(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Mix ops with and without an in-place form."""
    y = rms_norm(x, w, 1e-5)
    out, total = fused.maybe_inplace(y, r * 1, w, 1e-5)
    gated: Any = ops.silu_and_mul(torch.cat((out, total), -1))
    return gated, rms_norm(total, None, 1e-5)


@case(donates=(1,))
def layout_changing_clone(x: Tensor, r: Tensor, w: Tensor) -> Any:
    """Clone into another layout, and give both."""
    y = (x * 2).t()
    z = y.clone(memory_format=torch.contiguous_format).t()
    out, total = fused.maybe_inplace(z, r, w, 1e-5)
    return out, total, y


def arguments(tokens: int) -> list[Tensor]:
    """Return x, r and w."""
    return [torch.randn(tokens, WIDTH), torch.randn(tokens, WIDTH), torch.rand(WIDTH) + 0.5]


def compare(given: Given, run: Any, tokens: int) -> None:
    """Fail unless results, the caller's tensors, and what shares memory with them are eager's."""
    wanted_inputs, got_inputs = ([t.clone() for t in inputs] for inputs in [arguments(tokens)] * 2)
    with torch.no_grad():
        wanted = leaves(given.function(*wanted_inputs))
        got = leaves(run(*got_inputs))
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        assert mine.shape == theirs.shape
    for index, (mine, theirs) in enumerate(zip(got_inputs, wanted_inputs, strict=True)):
        if index not in given.donated:
            assert torch.equal(mine, theirs), f"input {index} was overwritten"
            shared = [_memory(result) == _memory(mine) for result in got]
            assert shared == [_memory(result) == _memory(theirs) for result in wanted], f"input {index} is returned"
    assert torch.equal(PARAMETER, torch.ones(5, WIDTH))


leaves = torch.utils._pytree.tree_leaves


def _memory(tensor: Tensor) -> int:
    """Return the identity of a tensor's memory."""
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("kind", ["inplace", "functional", "both"])
@pytest.mark.parametrize("name", CASES)
def test_lowered(provide: Any, compiled: Any, name: str, kind: str, dynamic: bool) -> None:
    """A lowered graph has eager's values and side effects, and not one copy more than needed."""
    for op in (fused, rotary, rms_norm):
        provide(op, kind)
    given = CASES[name]
    run = compiled(given.function, dynamic=dynamic)
    for tokens in (5, 5, 9) if dynamic and name != "parameter_donated" else (5,):
        compare(given, run, tokens)
    expected = given.copies if kind == "inplace" else 0
    if expected is not None and given.copies is not None:
        assert sum(each.copies for each in compiled.lowered) == expected * len(compiled.lowered)
    assert len(compiled.lowered) == 1


SHARE = (
    "read_through_a_view",
    "own_clone_donated",
    "two_equal_clones",
    "transposed_donated",
    "tensor_lists",
    "chunked_qkv",
    "returned_clone",
    "input_written_elsewhere",
    "input_overwritten_by_a_result",
    "three_layers_without_donation",
)
"""Cases that go through Inductor, too, in one graph, since that costs seconds."""


@pytest.mark.parametrize("kind", ["inplace", "functional"])
def test_inductor(provide: Any, compiled: Any, kind: str) -> None:
    """Inductor makes eager's values and side effects of all cases, put into one graph to compile it once."""
    for op in (fused, rotary, rms_norm):
        provide(op, kind)
    names = SHARE

    def all_cases(*inputs: Tensor) -> Any:
        """Run every case that donates no input on tensors of its own."""
        return [CASES[name].function(*inputs[3 * i : 3 * i + 3]) for i, name in enumerate(names)]

    run = compiled(all_cases, inductor=True)
    inputs = [tensor for _ in names for tensor in arguments(5)]
    wanted_inputs, got_inputs = ([tensor.clone() for tensor in inputs] for _ in range(2))
    with torch.no_grad():
        wanted, got = all_cases(*wanted_inputs), run(*got_inputs)
    for name, mine, theirs in zip(names, got, wanted, strict=True):
        close = [torch.allclose(m, t, rtol=1e-4, atol=1e-5) for m, t in zip(leaves(mine), leaves(theirs), strict=True)]
        assert all(close), name
    for index, (mine, theirs) in enumerate(zip(got_inputs, wanted_inputs, strict=True)):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5), f"{names[index // 3]} overwrote input {index % 3}"


@pytest.mark.parametrize("name", [name for name, given in CASES.items() if given.donated])
def test_inductor_with_donated_inputs(provide: Any, compiled: Any, name: str) -> None:
    """Inductor makes eager's values of what donates its inputs, in a dynamic graph."""
    for op in (fused, rotary):
        provide(op, "inplace")
    run = compiled(CASES[name].function, inductor=True, dynamic=True)
    compare(CASES[name], run, 5)


@pytest.mark.parametrize("kind", ["inplace", "functional"])
def test_zero_tokens(provide: Any, compiled: Any, kind: str) -> None:
    """Graphs that are traced with no tokens at all, and dynamic ones that are given none, are right."""
    for op in (fused, rotary, rms_norm):
        provide(op, kind)
    for name in ("nothing_donated", "residual_donated", "three_layers", "chunked_qkv"):
        given = CASES[name]
        compare(given, compiled(given.function), 0)
        torch._dynamo.reset()
        run = compiled(given.function, dynamic=True)
        compare(given, run, 5)
        compare(given, run, 0)
