"""A graph is text that a person reads: one line a node, ops and dtypes by their short names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir import ops
from vllm_ir.compile import print_graph
from vllm_ir.errors import NothingToPrint

from core.tests.compile.passes import decoder_parts as parts
from core.tests.compile.passes.conftest import same_bits
from core.tests.compile.passes.decoder_parts import R, W, X

if TYPE_CHECKING:
    from core.tests.compile.passes.conftest import Fuser

BEFORE = """\
arg0_1     : bf16[5, 32] = input
arg1_1     : bf16[5, 32] = input
arg2_1     : bf16[32] = input
_to_copy   : f32[5, 32] = _to_copy(arg0_1, dtype=f32)
_to_copy_1 : f32[5, 32] = _to_copy(arg1_1, dtype=f32)
add        : f32[5, 32] = add.Tensor(_to_copy, _to_copy_1)  # read 2x
rms_norm   : f32[5, 32] = rms_norm(add, arg2_1, 1e-06)
_to_copy_2 : bf16[5, 32] = _to_copy(rms_norm, dtype=bf16)
_to_copy_3 : bf16[5, 32] = _to_copy(add, dtype=bf16)
return [_to_copy_2, _to_copy_3]"""

AFTER = """\
arg0_1             : bf16[5, 32] = input
arg1_1             : bf16[5, 32] = input
arg2_1             : bf16[32] = input
fused_add_rms_norm : (bf16[5, 32], bf16[5, 32]) = fused_add_rms_norm(arg0_1, arg1_1, arg2_1, 1e-06)
getitem            : bf16[5, 32] = fused_add_rms_norm[0]
getitem_1          : bf16[5, 32] = fused_add_rms_norm[1]
return [getitem, getitem_1]"""


def test_before_and_after_a_fusion(fuser: Fuser) -> None:
    """Each line says what a node's result is, what it calls, and how often it is read."""
    fuser(parts.add_in_float32, X, R, W, fusions=["add_norm"])
    assert fuser.texts == [BEFORE, AFTER]


def test_sizes_that_are_open_have_their_names(fuser: Fuser) -> None:
    """And a slice to the end says so."""
    fuser(lambda x: ops.rms_norm(x[:, 16:], None, 1e-6), X, dynamic=True)
    text = fuser.texts[0]
    assert "end)" in text
    (size,) = [line.split(" = ")[0].split(": ")[1].strip() for line in text.splitlines() if "  # unused" in line]
    assert f"bf16[{size}, 16]" in text


def test_a_module_and_a_graph_without_fakes(state: pytest.FixtureRequest) -> None:
    """Of a result that nothing is known of that is said."""
    assert state is not None
    module = torch.fx.symbolic_trace(lambda x: x + 1)
    assert print_graph(module) == "x   : ? = input\nadd : ? = add(x, 1)\nreturn add"
    traced = make_fx(ops.silu_and_mul, tracing_mode="fake")(torch.empty(2, 8))
    assert print_graph(traced) == print_graph(traced.graph)
    assert "silu_and_mul : f32[2, 4] = silu_and_mul(arg0_1)" in print_graph(traced)


def test_what_is_no_graph_is_told() -> None:
    """With what was given, and how a function becomes a graph."""
    with pytest.raises(NothingToPrint, match=r"print_graph: got None, wanted a torch\.fx\.Graph or GraphModule, as"):
        print_graph(None)  # type: ignore[arg-type]
    with pytest.raises(NothingToPrint, match=r"got same_bits \(function\), .* of a function make_fx\(function, "):
        print_graph(same_bits)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got an object \(int\)"):
        print_graph(3)  # type: ignore[arg-type]


def test_a_long_line_goes_on_below_its_call(fuser: Fuser) -> None:
    """No line is longer than a hundred signs."""
    fuser(parts.heads_in_a_dimension, *parts.HEADS)
    lines = fuser.texts[0].splitlines()
    assert max(map(len, lines)) <= 100
    (at,) = [place for place, line in enumerate(lines) if line.startswith("rotary_embedding ")]
    assert lines[at + 1].startswith(" " * len("rotary_embedding : "))
