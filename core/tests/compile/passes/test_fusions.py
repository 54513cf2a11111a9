"""The built-in fusions: what each replaces, bit for bit, and the near misses that each leaves alone with its reason."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from vllm_ir import ops
from vllm_ir.compile import fusions

from core.tests.compile.passes import decoder_parts as parts
from core.tests.compile.passes.conftest import same_bits
from core.tests.compile.passes.decoder_parts import (
    ANGLES,
    GATED,
    HEAD,
    HEAD_W,
    NEOX,
    POSITIONS,
    QKV,
    SCALE,
    WIDE,
    Part,
    R,
    W,
    X,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.tests.compile.passes.conftest import Fuser


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("part", parts.PARTS, ids=lambda part: part.function.__name__)
def test_a_part_becomes_one_op_with_its_bits(part: Part, dynamic: bool, fuser: Fuser) -> None:
    """Where native runs both, nothing changes but who is called, whatever the number of tokens."""
    got = fuser(part.function, *part.args, fusions=[part.fusion], dynamic=dynamic)
    assert fuser.ran(part.fusion).changes == 1
    assert list(fuser.record.counts) == [part.op]
    assert fuser.ran(part.fusion).near_misses == ()
    assert same_bits(got, part.function(*part.args))


def test_everything_at_once(fuser: Fuser) -> None:
    """Fusions build on each other: a sum, its norm and the quantisation become one op in two passes."""

    def layer(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, packed: Tensor) -> Any:
        """Begin and end a product."""
        total = x + residual.view(residual.shape)
        q = ops.static_quant_fp8(ops.rms_norm(total, weight, 1e-6), scale)
        return q, total, ops.dynamic_group_quant_fp8(ops.silu_and_mul(packed), 8)

    args = (*WIDE, SCALE, GATED)
    got = fuser(layer, *args, fusions="all")
    assert same_bits(got[:2], layer(*args)[:2])
    assert same_bits(got[2], layer(*args)[2])
    assert {each.name: each.changes for each in fuser.record.passes if each.changes} == {
        "noop_removal": 1,
        "add_norm": 1,
        "norm_quant": 1,
        "activation_quant": 1,
        "lowering": 2,
    }
    assert set(fuser.record.counts) == {"fused_add_rms_norm_static_quant_fp8", "silu_and_mul_group_quant_fp8"}


def other_epsilon(positions: Tensor, query: Tensor, key: Tensor, weight: Tensor, angles: Tensor) -> Any:
    """Normalise query and key with two epsilons."""
    query, key = ops.rms_norm(query, weight, 1e-6), ops.rms_norm(key, weight, 1e-5)
    return ops.rotary_embedding(positions, query, key, HEAD, HEAD, angles, NEOX)


def extra_reader(x: Tensor, weight: Tensor, scale: Tensor) -> Any:
    """Read the norm once more."""
    normal = ops.rms_norm(x, weight, 1e-6)
    return ops.static_quant_fp8(normal, scale), normal.sin()


def also_returned(x: Tensor) -> Any:
    """Return what is quantised, too."""
    gated = ops.silu_and_mul(x)
    return *ops.dynamic_quant_fp8(gated), gated


def quantised_residual(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> Any:
    """Quantise the sum, not its norm."""
    normal, total = ops.fused_add_rms_norm(x, residual, weight, 1e-6)
    return normal, ops.static_quant_fp8(total, scale)


def part_of_the_row(x: Tensor, weight: Tensor, scale: Tensor) -> Any:
    """Measure a part of each row, which the fused op does not."""
    return ops.static_quant_fp8(ops.rms_norm(x, weight, 1e-6, 16), scale)


def scaled_sum(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    """Add a multiple."""
    return ops.rms_norm(torch.add(x, residual, alpha=2), weight, 1e-6)


def whole_token(positions: Tensor, query: Tensor, key: Tensor, weight: Tensor, angles: Tensor) -> Any:
    """Normalise all heads of a token together."""
    query, key = ops.rms_norm(query, weight.repeat(4), 1e-6), ops.rms_norm(key, weight.repeat(2), 1e-6)
    return ops.rotary_embedding(positions, query, key, HEAD, HEAD, angles, NEOX)


def read_by_two(positions: Tensor, qkv: Tensor, weight: Tensor, angles: Tensor) -> Any:
    """Read the normalised key before it is turned."""
    query, key, _ = (part.unflatten(-1, (-1, HEAD)) for part in qkv.split([4 * HEAD, 2 * HEAD, 2 * HEAD], -1))
    query, key = ops.rms_norm(query, weight, 1e-6), ops.rms_norm(key, weight, 1e-6)
    return ops.rotary_embedding(positions, query, key, HEAD, HEAD, angles, NEOX), key.cos()


def sum_read_by_two(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    """Read the float32 sum before it is rounded."""
    total = x.float() + residual.float()
    return ops.rms_norm(total, weight, 1e-6).to(x.dtype), total.sin()


PACKED = GATED.float()
QUERY, KEY = QKV[:, : 4 * HEAD].contiguous(), QKV[:, : 2 * HEAD].contiguous()
APART = (POSITIONS, QUERY.unflatten(-1, (-1, HEAD)), KEY.unflatten(-1, (-1, HEAD)), HEAD_W, ANGLES)
COLUMNS = torch.randn(2 * parts.WIDTH, parts.TOKENS).to(torch.bfloat16).t()
PER_CHANNEL = torch.rand(parts.WIDTH) + 0.5
SPREAD = torch.randn(parts.TOKENS, 16 * HEAD).to(torch.bfloat16)[:, ::2]

NEAR_MISSES: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...], str]] = {
    "add_norm/rounded sum": ("add_norm", parts.add_then_norm, (X, R, W), "the sum is rounded to bfloat16 before"),
    "add_norm/rounded sum, float16": ("add_norm", parts.add_then_norm, (X.half(), R.half(), W.half()), "to float16"),
    "add_norm/weight dtype": (
        "add_norm",
        parts.add_then_norm,
        (WIDE[0], WIDE[1], W),
        "'weight' is bfloat16 where 'x' is float32",
    ),
    "add_norm/slice": ("add_norm", parts.add_then_norm, (PACKED[:, :32], *WIDE[1:]), "'x' is not contiguous"),
    "add_norm/broadcast": ("add_norm", parts.add_then_norm, (WIDE[0], WIDE[1][:1], WIDE[2]), "of different shapes"),
    "add_norm/alpha": ("add_norm", scaled_sum, WIDE, "'alpha' of add is 2, wanted 1"),
    "add_norm/extra user": ("add_norm", sum_read_by_two, (X, R, W), "result of add is also read by sin"),
    "norm_quant/weight dtype": (
        "norm_quant",
        parts.norm_then_static,
        (X, W.float(), SCALE),
        "'weight' is float32 where 'x' is bfloat16",
    ),
    "norm_quant/slice": (
        "norm_quant",
        parts.norm_then_static,
        (GATED[:, :32], W, SCALE),
        "'x' is not contiguous: it is a slice of rows, or turned",
    ),
    "norm_quant/extra user": (
        "norm_quant",
        extra_reader,
        (X, W, SCALE),
        "result of rms_norm is also read by sin",
    ),
    "norm_quant/scale per channel": (
        "norm_quant",
        parts.norm_then_static,
        (X, W, PER_CHANNEL),
        "'scale' is of shape [32], and the fused op takes one value",
    ),
    "norm_quant/scale per channel, add": (
        "norm_quant",
        parts.add_norm_then_static,
        (X, R, W, PER_CHANNEL),
        "'scale' is of shape [32], and the fused op takes one value",
    ),
    "norm_quant/the sum": (
        "norm_quant",
        quantised_residual,
        (X, R, W, SCALE),
        "'x' of static_quant_fp8 is result 1 of fused_add_rms_norm, wanted 0",
    ),
    "norm_quant/variance size": (
        "norm_quant",
        part_of_the_row,
        (X, W, SCALE),
        "'variance_size' of rms_norm is 16, wanted None",
    ),
    "activation_quant/slice": ("activation_quant", parts.gate_then_static, (COLUMNS, SCALE), "'x' is not contiguous"),
    "activation_quant/extra user": (
        "activation_quant",
        also_returned,
        (GATED,),
        "result of silu_and_mul is also read by the graph's output",
    ),
    "activation_quant/scale per channel": (
        "activation_quant",
        parts.gate_then_static,
        (GATED, PER_CHANNEL),
        "'scale' is of shape [32], and the fused op takes one value",
    ),
    "qk_norm_rope/weight dtype": (
        "qk_norm_rope",
        parts.heads_in_a_dimension,
        (POSITIONS, QKV, HEAD_W.float(), ANGLES),
        "'query_weight' is float32 where 'query' is bfloat16",
    ),
    "qk_norm_rope/slice": (
        "qk_norm_rope",
        parts.heads_in_a_dimension,
        (POSITIONS, SPREAD, HEAD_W, ANGLES),
        "elements of a row of 'query' lie apart",
    ),
    "qk_norm_rope/extra user": ("qk_norm_rope", read_by_two, parts.HEADS, "result of rms_norm is also read by cos"),
    "qk_norm_rope/epsilon": (
        "qk_norm_rope",
        other_epsilon,
        APART,
        "'epsilon' of rms_norm is 1e-05, and 1e-06 elsewhere: the pattern has one 'epsilon'",
    ),
    "qk_norm_rope/norm of a token": (
        "qk_norm_rope",
        whole_token,
        (POSITIONS, QUERY, KEY, HEAD_W, ANGLES),
        "rows of 'query' are 64 elements, wanted those of one head, 16",
    ),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_a_near_miss_is_left_alone_and_told(case: str, fuser: Fuser, caplog: pytest.LogCaptureFixture) -> None:
    """In the record, with how often, and at level DEBUG, with the op, the node and the user's line."""
    name, function, args, said = NEAR_MISSES[case]
    with caplog.at_level(logging.DEBUG, logger="vllm_ir"):
        got = fuser(function, *args, fusions=[name])
    assert fuser.ran(name).changes == 0
    (miss,) = [each for each in fuser.ran(name).near_misses if said in each.reason]
    assert (miss.count, miss.node != "") == (1, True)
    assert "passes" in miss.where
    told = [line for line in caplog.messages if line.startswith(f"pass {name}: {miss.op} in node {miss.node!r} (")]
    assert any(said in line for line in told)
    assert any(f"pass {name}: {miss}" in line for line in caplog.messages)
    assert same_bits(got, function(*args))


FAR: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...]]] = {
    "a norm of no sum": ("add_norm", parts.norm_then_token, (X, W)),
    "a gate before a quantisation": ("norm_quant", parts.gate_then_static, (GATED, SCALE)),
    "a norm before a quantisation": ("activation_quant", parts.norm_then_token, (X, W)),
    "a rotation of what is not normalised": (
        "qk_norm_rope",
        lambda positions, query, key, angles: ops.rotary_embedding(positions, query, key, 16, 16, angles, True),  # noqa: FBT003 - an op's arguments are positional
        (POSITIONS, QUERY, KEY, ANGLES),
    ),
}


@pytest.mark.parametrize("case", FAR)
def test_what_shares_an_op_alone_is_no_near_miss(case: str, fuser: Fuser) -> None:
    """Else every norm and every quantisation of a model would be told, and hide those that nearly were one."""
    name, function, args = FAR[case]
    got = fuser(function, *args, fusions=[name])
    ran = fuser.ran(name)
    assert (ran.changes, ran.near_misses) == (0, ())
    assert same_bits(got, function(*args))


def test_a_reshape_or_a_cast_between_two_parts_is_looked_through(fuser: Fuser) -> None:
    """What stands between two parts is the reason, and so the place is told."""

    def reshaped(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        """Quantise what is normalised, as other rows."""
        q: Tensor = ops.static_quant_fp8(ops.rms_norm(x, weight, 1e-6).view(-1, 16), scale)
        return q

    fuser(reshaped, X, W, SCALE, fusions=["norm_quant"])
    (miss,) = fuser.ran("norm_quant").near_misses
    assert miss.reason.startswith("'x' of static_quant_fp8 comes from view, wanted ")


@pytest.mark.parametrize("part", parts.PARTS[::3], ids=lambda part: part.function.__name__)
def test_a_graph_that_is_differentiated_is_left_alone(part: Part, fuser: Fuser) -> None:
    """Whatever in it has the gradient."""

    def trained(other: Tensor, *args: Any) -> Any:
        """Compute something with a gradient beside the part."""
        return part.function(*args), other.exp()

    _, other = fuser(trained, torch.rand(3).requires_grad_(), *part.args, fusions=[part.fusion], training=True)
    assert other.requires_grad
    assert fuser.ran(part.fusion).changes == 0
    (miss,) = fuser.ran(part.fusion).near_misses
    assert miss.reason == "training: the graph is differentiated, and keeps the values in between"


@pytest.mark.parametrize("quantise", [ops.dynamic_group_quant_fp8, ops.dynamic_quant_fp8], ids=lambda op: op.name)
def test_groups_are_not_taken_for_the_whole_row(quantise: Any, fuser: Fuser) -> None:
    """A norm is fused with one scale for a token or a tensor, and never with one for each group."""

    def quantised(x: Tensor, weight: Tensor) -> Any:
        """Normalise and quantise."""
        normal = ops.rms_norm(x, weight, 1e-6)
        return quantise(normal, 8) if quantise is ops.dynamic_group_quant_fp8 else quantise(normal, per_token=False)

    got = fuser(quantised, X, W, fusions=["norm_quant"])
    assert fuser.ran("norm_quant").changes == int(quantise is ops.dynamic_quant_fp8)
    assert same_bits(got, quantised(X, W))


def test_near_misses_of_one_reason_are_counted(fuser: Fuser) -> None:
    """The first of them is named."""

    def stack(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
        """Add and normalise three times."""
        for _ in range(3):
            residual = x + residual
            x = ops.rms_norm(residual, weight, 1e-6)
        return x

    fuser(stack, X, R, W, fusions=["add_norm"])
    (miss,) = fuser.ran("add_norm").near_misses
    assert (miss.op, miss.count, miss.node) == ("rms_norm", 3, "rms_norm")
    assert str(miss).startswith("rms_norm left alone (3x), first in node 'rms_norm' (")


def test_a_rounding_is_left_out_only_on_request(fuser: Fuser) -> None:
    """`add_norm(always=True)` fuses a rounded sum: the result is that of the fused op, not of the parts."""
    got = fuser(parts.add_then_norm, X, R, W, passes=[fusions.add_norm(always=True)])
    assert fuser.ran("add_norm").changes == 1
    assert same_bits(got, ops.fused_add_rms_norm(X, R, W, 1e-6))
    assert fusions.add_norm(always=True).key() != fusions.add_norm().key()


def test_the_table_of_near_misses_covers_every_fusion() -> None:
    """Each has at least a slice, another reader and another dtype or scale."""
    for name in ("add_norm", "norm_quant", "activation_quant", "qk_norm_rope"):
        kinds = {case.partition("/")[2] for case in NEAR_MISSES if case.startswith(name)}
        assert {"slice", "extra user"} <= kinds
        assert {"weight dtype", "scale per channel"} & kinds
