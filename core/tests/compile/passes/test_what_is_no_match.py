"""What looks like a pattern and is another program: operands, lists and constants, each left alone and told."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops, register_op
from vllm_ir.compile import Fusion
from vllm_ir.compile.passes.plain import equal

from core.tests.compile.passes.conftest import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.tests.compile.passes.conftest import Fuser

X = torch.linspace(-2, 2, 24).view(3, 8)
Y = torch.linspace(1, 3, 12).view(3, 4)
ROWS, COLUMNS = torch.tensor([0, 2, 1]), torch.tensor([1, 0, 3])
SEVEN = torch.tensor([7.0])
WHOLE = torch.tensor([16777217])
NAN = float("nan")

gate = ops.silu_and_mul


def own(pattern: Callable[..., Any], *example: Any, free: tuple[str, ...] = ()) -> Fusion:
    """Return a fusion that puts one more than a pattern in its place, so that a result tells whether it fired."""

    @functools.wraps(pattern)
    def replacement(*args: Any) -> Any:
        """Return one more."""
        return pattern(*args) + 1

    def drawn() -> tuple[Any, ...]:
        """Return the example, tensors made anew where fakes are made."""
        return tuple(torch.empty(e.shape, dtype=e.dtype) if isinstance(e, torch.Tensor) else e for e in example)

    return Fusion(name="own", pattern=pattern, replacement=replacement, example=drawn, free=free)


def twice_the_second(p: torch.Tensor, r: torch.Tensor) -> Any:
    """Add twice another tensor."""
    return torch.add(gate(p), r, alpha=2)


def put_rows(p: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> Any:
    """Put a value into rows."""
    return torch.index_put(gate(p), (i,), v)


def less(p: torch.Tensor, r: torch.Tensor) -> Any:
    """Take another tensor away."""
    return gate(p) - r


ROUND = "nothing here is 'r': the first two arguments of {} are the other way round"
TWO = (X, Y)


@pytest.mark.parametrize(
    ("pattern", "args", "program", "given", "said"),
    [
        (twice_the_second, TWO, twice_the_second, TWO, None),
        (twice_the_second, TWO, lambda p, r: torch.add(r, gate(p), alpha=2), TWO, ROUND.format("add")),
        (lambda p, r: gate(p) + r, TWO, lambda p, r: r + gate(p), TWO, None),
        (
            lambda p, r: gate(p) + r,
            TWO,
            lambda p, r: torch.add(r, gate(p), alpha=2),
            TWO,
            ROUND.format("add"),
        ),
        (lambda p, r: r * gate(p), TWO, lambda p, r: gate(p) * r, TWO, None),
        (less, TWO, lambda p, r: r - gate(p), TWO, ROUND.format("sub")),
        (
            lambda p, r: torch.maximum(gate(p), r),
            TWO,
            lambda p, r: torch.maximum(r, gate(p)),
            TWO,
            ROUND.format("maximum"),
        ),
        (put_rows, (X, ROWS, SEVEN), put_rows, (X, ROWS, SEVEN), None),
        (
            put_rows,
            (X, ROWS, SEVEN),
            lambda p, i, j, v: torch.index_put(gate(p), (i, j), v),
            (X, ROWS, COLUMNS, SEVEN),
            "nothing here is 'i': index_put has 'indices[1]', and the pattern's list is shorter",
        ),
        (lambda p: gate(p) / 0.0, (X,), lambda p: gate(p) / 0.0, (X,), None),
        (
            lambda p: gate(p) / 0.0,
            (X,),
            lambda p: gate(p) / -0.0,
            (X,),
            "the second argument of div is -0.0, wanted 0.0",
        ),
        (lambda p: torch.clamp(gate(p), max=NAN), (X,), lambda p: torch.clamp(gate(p), max=NAN), (X,), None),
        (lambda p: gate(p) * 2.0, (X,), lambda p: gate(p) * 2, (X,), None),
        (
            lambda p, i: gate(p * (i == 16777216).float()),
            (X, WHOLE),
            lambda p, i: gate(p * (i == 16777216.0).float()),
            (X, WHOLE),
            "the second argument of eq is 16777216.0, wanted 16777216",
        ),
    ],
)
def test_only_what_means_the_same_is_replaced(
    pattern: Callable[..., Any],
    args: tuple[Any, ...],
    program: Callable[..., Any],
    given: tuple[Any, ...],
    said: str | None,
    fuser: Fuser,
) -> None:
    """With the pattern's bits plus one where it is the pattern, and eager's bits and the reason where it is not."""
    got = fuser(program, *given, passes=[own(pattern, *args)])
    ran = fuser.ran("own")
    assert [ran.changes, *(miss.reason for miss in ran.near_misses)] == ([1] if said is None else [0, said])
    assert torch.equal(got.view(torch.int32), (program(*given) + (said is None)).view(torch.int32))


def test_alpha_that_is_free_commutes_only_where_both_are_one(fuser: Fuser) -> None:
    """Drawn with one, a pattern says nothing of the graph's two."""

    def scaled(p: torch.Tensor, r: torch.Tensor, alpha: int) -> Any:
        """Add a multiple of another tensor."""
        return torch.add(gate(p), r, alpha=alpha)

    def turned(p: torch.Tensor, r: torch.Tensor) -> Any:
        """Add a multiple of the gated one."""
        return torch.add(r, gate(p), alpha=2)

    assert same_bits(fuser(turned, *TWO, passes=[own(scaled, *TWO, 1, free=("alpha",))]), turned(*TWO))
    assert fuser.ran("own").changes == 0


def test_zeros_of_both_signs_are_drawn_apart(fuser: Fuser) -> None:
    """Where a number is free: a pattern that was drawn on one zero is not the one that is drawn on the other."""

    def clamped(p: torch.Tensor, max: float) -> Any:  # noqa: A002 - a parameter is bound by torch's name
        """Gate, and clamp."""
        return torch.clamp(gate(p), max=max)

    def both(p: torch.Tensor) -> Any:
        """Clamp twice, by either zero."""
        return 1 / torch.clamp(gate(p), max=0.0), 1 / torch.clamp(gate(p), max=-0.0)

    def replacement(p: torch.Tensor, max: float) -> Any:  # noqa: A002
        """Return the zero alone."""
        return torch.full_like(gate(p), max)

    fusion = Fusion(
        name="own", pattern=clamped, replacement=replacement, example=lambda: (torch.empty(2, 8), 1.0), free=("max",)
    )
    got = fuser(both, X, passes=[fusion])
    assert fuser.ran("own").changes == 2
    assert [each.unique().tolist() for each in got] == [[float("inf")], [float("-inf")]]


def test_a_list_has_the_patterns_length(fuser: Fuser) -> None:
    """For an op, too, in the middle of a pattern and at its end: no tensor of the graph is lost."""

    @register_op
    def all_added(xs: list[torch.Tensor], more: float = 1.0) -> torch.Tensor:
        """Add tensors."""
        return sum(xs[1:], xs[0]) + more

    last = own(lambda p, a: all_added([gate(p), a]), *TWO)
    inner = own(lambda p, a: gate(all_added([p, a])), X, X)

    def three(x: torch.Tensor, y: torch.Tensor) -> Any:
        """Add three."""
        return all_added([gate(x), y, y * 3])

    def three_before(x: torch.Tensor) -> Any:
        """Add three, and gate."""
        return gate(all_added([x, x * 2, x * 3]))

    for fusion, program, args in ((last, three, TWO), (inner, three_before, (X,))):
        assert same_bits(fuser(program, *args, passes=[fusion]), program(*args))
        (miss,) = fuser.ran("own").near_misses
        assert miss.reason == "all_added has 'xs[2]', and the pattern's list is shorter"
    assert same_bits(fuser(lambda x, y: all_added([gate(x), y]), *TWO, passes=[last]), all_added([gate(X), Y]) + 1)


def less_by_dtype(p: torch.Tensor, r: torch.Tensor) -> Any:
    """Take one from the other, in an order that the dtype decides."""
    return gate(p) - r if p.dtype == torch.float32 else r - gate(p)


def pair_by_dtype(p: torch.Tensor, r: torch.Tensor) -> Any:
    """Return two in an order that the dtype decides."""
    more = gate(p) + r
    pair = more, more * 2
    return pair if p.dtype == torch.float32 else pair[::-1]


@pytest.mark.parametrize("pattern", [less_by_dtype, pair_by_dtype])
def test_a_pattern_that_is_wired_otherwise_on_what_was_found_is_another(
    pattern: Callable[..., Any], fuser: Fuser
) -> None:
    """Though it has the same calls in the same order: it fires in float32 and leaves bfloat16 as it is."""
    fusion = Fusion(
        name="own", pattern=pattern, replacement=pattern, example=lambda: (torch.empty(2, 8), torch.empty(2, 4))
    )

    def program(p: torch.Tensor, r: torch.Tensor) -> Any:
        """Do what the pattern does in float32."""
        more = gate(p) + r
        return gate(p) - r if pattern is less_by_dtype else (more, more * 2)

    fuser(program, *TWO, passes=[fusion])
    assert fuser.ran("own").changes == 1
    half = X.bfloat16(), Y.bfloat16()
    assert same_bits(fuser(program, *half, passes=[fusion]), program(*half))
    (miss,) = fuser.ran("own").near_misses
    assert miss.reason == "on these arguments the pattern is another graph"


def test_one_tensor_may_stand_for_two_parameters(fuser: Fuser) -> None:
    """Beside a place where two do, in either order."""
    fusion = own(lambda p, r: gate(p) * (p + r)[:, :4], X, X)

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        """Add a tensor to itself, and to another."""
        return gate(x) * (x + x)[:, :4], gate(y) * (y + x)[:, :4], gate(x) * (x + x)[:, :4]

    got = fuser(program, X, X + 1, passes=[fusion])
    assert fuser.ran("own").changes == 3
    assert same_bits(got, tuple(each + 1 for each in program(X, X + 1)))


@pytest.mark.parametrize(
    ("one", "other", "same", "same_beside_whole_numbers"),
    [
        (0.0, -0.0, False, False),
        (0, -0.0, False, False),
        (0, 0.0, True, False),
        (NAN, float("nan"), True, True),
        (True, 1, False, False),
        (1, 1.0, True, False),
        (2**70, 2**70, True, True),
        (2**53 + 1, float(2**53), False, False),
        (10**400, 1.0, False, False),
        ((1, 0.0), (1, -0.0), False, False),
        (complex(0.0, 0.0), complex(0.0, -0.0), False, False),
        (complex(0.0, NAN), complex(0.0, NAN), True, True),
        (torch.float32, torch.float32, True, True),
        (None, 0, False, False),
        ("none", "tanh", False, False),
    ],
)
def test_constants_are_compared_by_bits(one: Any, other: Any, same: bool, same_beside_whole_numbers: bool) -> None:
    """From both sides."""
    assert equal(one, other) == equal(other, one) == same
    assert equal(one, other, typed=True) == equal(other, one, typed=True) == same_beside_whole_numbers
