"""Graphs in which every size is open, that of a row too, and numbers that come in from outside: fusions fire there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from vllm_ir import ops
from vllm_ir.compile import Fusion, lower_graph

from core.tests.compile.passes.conftest import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

NEOX = True


def from_the_weight(positions: Tensor, query: Tensor, key: Tensor, weight: Tensor, angles: Tensor) -> Any:
    """Take the size of a head from the weight."""
    size = weight.shape[0]
    query = ops.rms_norm(query.view(*query.shape[:-1], -1, size), weight, 1e-6).view(query.shape)
    key = ops.rms_norm(key.view(*key.shape[:-1], -1, size), weight, 1e-6).view(key.shape)
    return ops.rotary_embedding(positions, query, key, size, size, angles, NEOX)


def as_rows(positions: Tensor, query: Tensor, key: Tensor, weight: Tensor, angles: Tensor, size: int) -> Any:
    """Take the size of a head as a number, and normalise heads as rows of a matrix."""
    query = ops.rms_norm(query.view(-1, size), weight, 1e-6).view(query.shape)
    key = ops.rms_norm(key.view(-1, size), weight, 1e-6).view(key.shape)
    return ops.rotary_embedding(positions, query, key, size, angles.shape[-1], angles, NEOX)


def flattened(positions: Tensor, query: Tensor, key: Tensor, weight: Tensor, angles: Tensor) -> Any:
    """Join heads again by their sizes, which the graph then reads off a view."""
    size = weight.shape[0]
    query = ops.rms_norm(query.unflatten(-1, (query.shape[-1] // size, size)), weight, 1e-6).flatten(-2)
    key = ops.rms_norm(key.unflatten(-1, (key.shape[-1] // size, size)), weight, 1e-6).flatten(-2)
    return ops.rotary_embedding(positions, query, key, size, size, angles, NEOX)


def given_apart(positions: Tensor, query: Tensor, key: Tensor, weight: Tensor, angles: Tensor) -> Any:
    """Take heads in a dimension of their own."""
    size = weight.shape[0]
    return ops.rotary_embedding(
        positions, ops.rms_norm(query, weight, 1e-6), ops.rms_norm(key, weight, 1e-6), size, size, angles, NEOX
    )


def gate_in_groups(x: Tensor, size: int) -> Any:
    """Quantise in groups of a size that comes from outside."""
    return ops.dynamic_group_quant_fp8(ops.silu_and_mul(x), size)


def add_then_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    """Add and normalise."""
    total = x + residual
    return ops.rms_norm(total, weight, 1e-6), total


def norm_then_quant(x: Tensor, weight: Tensor) -> Any:
    """Normalise and quantise."""
    return ops.dynamic_quant_fp8(ops.rms_norm(x, weight, 1e-6))


def doubled_in_groups(x: Tensor, group_size: int) -> Any:
    """Double, and quantise in groups."""
    q, scales = ops.dynamic_group_quant_fp8(x * 2, group_size)
    return q, scales


def added_in_groups(x: Tensor, group_size: int) -> Any:
    """Add to itself, and quantise in groups."""
    q, scales = ops.dynamic_group_quant_fp8(x + x, group_size)
    return q, scales


OWN = Fusion(
    name="own",
    pattern=doubled_in_groups,
    replacement=added_in_groups,
    example=lambda: (torch.empty(2, 32), 16),
    free=("group_size",),
)


def heads(*shape: int) -> Tensor:
    """Return bfloat16 of a shape."""
    return torch.randn(*shape).bfloat16()


def turned() -> tuple[Tensor, ...]:
    """Return positions, query and key of four heads each, a weight and angles.

    Sizes that are equal are one symbol, and each more costs seconds.
    """
    return torch.arange(4), heads(4, 64), heads(4, 64), heads(16), torch.randn(16, 16)


def cases() -> dict[str, tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Return the pass that is to fire, a function and what it is called with."""
    positions, _, _, weight, angles = turned()
    x = torch.randn(4, 64)
    return {
        "head size from the weight": ("qk_norm_rope", from_the_weight, turned()),
        "head size as a number": ("qk_norm_rope", as_rows, (*turned(), 16)),
        "heads joined by their sizes": ("qk_norm_rope", flattened, turned()),
        "heads given apart": (
            "qk_norm_rope",
            given_apart,
            (positions, heads(4, 4, 16), heads(4, 2, 16), weight, angles),
        ),
        "groups of a number": ("activation_quant", gate_in_groups, (x, 8)),
        "add, then norm": ("add_norm", add_then_norm, (x, torch.randn(4, 64), torch.rand(64))),
        "norm, then quantise": ("norm_quant", norm_then_quant, (x, torch.rand(64))),
        "own": ("own", doubled_in_groups, (x, 16)),
        "own, by a part of a row": ("own", lambda x: doubled_in_groups(x, x.shape[-1] // 2), (x,)),
    }


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("case", "door"),
    [
        *((case, "vllm_ir.compile") for case in cases()),
        ("groups of a number", "torch.compile"),
        ("own", "torch.compile"),
    ],
)
def test_a_match_needs_no_known_size(case: str, door: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every size open, by both doors: it fires, the bits are eager's, and torch logs nothing of what was only tried."""
    name, function, args = cases()[case]
    seen: list[bool] = []

    def lower(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        """Lower the graph, and see whether anything came in as a number that is open."""
        seen.append(any(isinstance(value, torch.SymInt) for value in inputs))
        lower_graph(module)
        return module

    torch._dynamo.reset()
    options: dict[str, Any] = {"fusions": [] if name == "own" else [name], "passes": [OWN], "lower_to": lower}
    compiled: Any = (
        vllm_ir.compile(function, dynamic=True, **options)
        if door == "vllm_ir.compile"
        else torch.compile(function, backend="vllm_ir", dynamic=True, options=options)
    )
    with torch.no_grad():
        got = compiled(*args)
        assert same_bits(tuple(got), tuple(function(*args)))
    assert seen == [True]
    (ran,) = [each for each in vllm_ir.report().graphs[-1].passes if each.name == name]
    assert (ran.changes, ran.near_misses) == (1, ())
    assert not [each for each in caplog.records if each.name.startswith("torch.") and each.levelno >= logging.ERROR]


@pytest.mark.usefixtures("state")
def test_one_graph_serves_other_sizes() -> None:
    """A fused graph in which the size of a head is open holds for another size, and gives its bits."""
    graphs: list[object] = []

    def lower(module: torch.fx.GraphModule, _: Any) -> Any:
        """Lower the graph, and keep it."""
        graphs.append(module)
        lower_graph(module)
        return module

    torch._dynamo.reset()
    compiled = vllm_ir.compile(gate_in_groups, dynamic=True, fusions=["activation_quant"], lower_to=lower)
    with torch.no_grad():
        for tokens, width, size in ((4, 64, 8), (5, 96, 16), (3, 128, 32)):
            x = torch.randn(tokens, width)
            assert same_bits(tuple(compiled(x, size)), tuple(gate_in_groups(x, size)))
    assert len(graphs) == 1


@pytest.mark.usefixtures("state")
def test_a_number_that_the_pattern_pins_is_told() -> None:
    """A group of a number that is open is not the pattern's group of 16, and the sentence names both."""
    pinned = Fusion(
        name="own",
        pattern=lambda x: doubled_in_groups(x, 16),
        replacement=lambda x: added_in_groups(x, 16),
        example=lambda: (torch.empty(2, 32),),
    )
    torch._dynamo.reset()
    compiled = vllm_ir.compile(doubled_in_groups, dynamic=True, passes=[pinned], lower_to=lambda module, _: module)
    with torch.no_grad():
        compiled(torch.randn(4, 64), 16)
    (ran,) = [each for each in vllm_ir.report().graphs[-1].passes if each.name == "own"]
    (miss,) = ran.near_misses
    assert ran.changes == 0
    assert miss.reason.startswith("'group_size' of dynamic_group_quant_fp8 is s")
    assert miss.reason.endswith(", wanted 16")
