"""Donated inputs that a program still holds where its graph does not show it: returned, kept, or read later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from vllm_ir import ops
from vllm_ir.compile import torch_frames
from vllm_ir.compile.lower_to import lower_graph
from vllm_ir.errors import UsedAfterDonation

if TYPE_CHECKING:
    from collections.abc import Callable

fused: Any = ops.fused_add_rms_norm


class Holder:
    """Keeps something.

    Attributes:
        last: what it keeps.
    """

    last: Tensor | None = None


HOLDER = Holder()


def lower(module: torch.fx.GraphModule, _inputs: Any) -> Any:
    """Be a compiler that lowers a graph and runs it as it is."""
    lower_graph(module)
    return module


def compiled(function: Callable[..., Any], **keywords: Any) -> Any:
    """Return a function compiled without Inductor."""
    return vllm_ir.compile(function, lower_to=lower, **keywords)


def inputs() -> tuple[Tensor, Tensor]:
    """Return rows and a residual."""
    return torch.randn(4, 16), torch.randn(4, 16)


def returned(x: Tensor, r: Tensor) -> Any:
    """Return what was donated, as it was given."""
    out, _ = fused.maybe_inplace(x, r, None, 1e-5)
    return out, x


def returned_alone(x: Tensor, r: Tensor) -> Any:
    """Return nothing but what was donated."""
    fused.maybe_inplace(x, r, None, 1e-5)
    return r


def returned_in_a_dictionary(x: Tensor, r: Tensor) -> Any:
    """Return it in what was made for it."""
    out, _ = fused.maybe_inplace(x, r, None, 1e-5)
    return {"out": out, "more": [x]}


def returned_after_a_view(x: Tensor, r: Tensor) -> Any:
    """Donate a view and return the tensor."""
    out, _ = fused.maybe_inplace(x.view(4, 16), r, None, 1e-5)
    return out, x


def kept(x: Tensor, r: Tensor) -> Any:
    """Keep what was donated."""
    HOLDER.last = x
    out, _ = fused.maybe_inplace(x, r, None, 1e-5)
    return out


def read_behind_a_break(x: Tensor, r: Tensor) -> Any:
    """Read it in the next graph."""
    out, _ = fused.maybe_inplace(x, r, None, 1e-5)
    torch._dynamo.graph_break()
    return out + x


def given_to_what_breaks(x: Tensor, r: Tensor) -> Any:
    """Hand it to what no graph has."""
    out, _ = fused.maybe_inplace(x, r, None, 1e-5)
    look(x)
    return out


def _look(x: Tensor) -> None:
    """Be code that Dynamo does not see."""
    assert x.dim()


look: Any = torch.compiler.disable(_look)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("function", "expression", "user", "line"),
    [
        (returned, "x", "the function's result", "return out, x"),
        (returned_alone, "r", "the function's result", "return r"),
        (returned_in_a_dictionary, "x", "the function's result", "return {"),
        (returned_after_a_view, "x.view(4, 16)", "the function's result", "return out, x"),
        (kept, "x", "attribute 'last'", ""),
        (read_behind_a_break, "x", "code behind a graph break", "return out + x"),
        (given_to_what_breaks, "x", "code behind a graph break", "look(x)"),
    ],
)
def test_what_is_held_behind_the_graph(function: Any, expression: str, user: str, line: str, dynamic: bool) -> None:
    """It does not compile, and the error says who holds what, and where, as for what the graph shows."""
    with torch.no_grad(), pytest.raises(UsedAfterDonation) as caught:
        compiled(function, dynamic=dynamic)(*inputs())
    error = caught.value
    assert (error.op, error.expression, error.user) == ("fused_add_rms_norm", expression, user)
    assert f"in {function.__name__}" in error.where
    assert line in error.used
    assert "test_kept.py" in error.used
    assert f"and {user} uses that memory afterwards (at " in str(error)


def results_are_its_own(x: Tensor, r: Tensor) -> Any:
    """Give what was donated the name of what became of it."""
    x, r = fused.maybe_inplace(x, r, None, 1e-5)
    torch._dynamo.graph_break()
    return x + r, x


def metadata_alone(x: Tensor | None, r: Tensor) -> Any:
    """Ask behind a break for what does not depend on values."""
    out, _ = fused.maybe_inplace(x, r, None, 1e-5)
    torch._dynamo.graph_break()
    if x is not None and r.dim() == 2 and x.dtype is out.dtype:
        return out.view(x.shape[0] * x.size(1))
    return out


def not_donated(x: Tensor, r: Tensor) -> Any:
    """Call the functional form and keep everything."""
    out, _ = fused(x, r, None, 1e-5)
    HOLDER.last = x
    torch._dynamo.graph_break()
    return out, x, r


def another_part(x: Tensor, r: Tensor) -> Any:
    """Donate one half and return the other."""
    mine, other = x.split(2)
    out, _ = fused.maybe_inplace(mine, r[:2], None, 1e-5)
    return out, other


def another_tensor(x: Tensor, r: Tensor, kept: Tensor) -> Any:
    """Return an input that nobody donated."""
    out, _ = fused.maybe_inplace(x, r, None, 1e-5)
    return out, kept


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("function", [results_are_its_own, metadata_alone, not_donated, another_part, another_tensor])
def test_what_is_no_use_of_it(function: Any) -> None:
    """The same as in eager."""
    given = [torch.randn(4, 16) for _ in range(3 if function is another_tensor else 2)]
    with torch.no_grad():
        mine = compiled(function)(*(each.clone() for each in given))
        theirs = function(*(each.clone() for each in given))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("state")
def test_a_graph_that_was_compiled_before_does_not_hide_it() -> None:
    """Two functions have one graph, and one of them alone returns what it donates."""

    def harmless(x: Tensor, r: Tensor) -> Any:
        """Return results."""
        out, _ = fused.maybe_inplace(x, r, None, 1e-5)
        return (out,)

    with torch._inductor.config.patch(force_disable_caches=False, fx_graph_cache=True), torch.no_grad():
        vllm_ir.compile(harmless)(*inputs())
        with pytest.raises(UsedAfterDonation):
            vllm_ir.compile(returned)(*inputs())


@pytest.mark.usefixtures("state")
def test_an_attribute_of_a_module_is_named_as_the_program_reaches_it() -> None:
    """Where the call's line does not show the argument, Dynamo's name for the input does."""

    class Model(torch.nn.Module):
        """Donates what it holds."""

        def __init__(self) -> None:
            super().__init__()
            self.memory = torch.randn(4, 16)

        def forward(self, x: Tensor) -> Any:
            """Spread the arguments."""
            given = (x * 1, self.memory, None, 1e-5)
            out, _ = fused.maybe_inplace(*given)
            return out, self.memory

    with torch.no_grad(), pytest.raises(UsedAfterDonation) as caught:
        compiled(Model())(torch.randn(4, 16))
    assert caught.value.expression == "self.memory"
    assert "donates `self.memory` as argument 'x_residual'" in str(caught.value)


@pytest.mark.usefixtures("state")
def test_a_torch_that_calls_it_otherwise_compiles_without_the_check(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is not found is logged, and nothing breaks: a name of the frame, or one below it."""

    def elsewhere(frame: Any) -> Any:
        """Ask for a name that this torch has not."""
        return frame.output.nowhere

    for name in ("_stored", "_returned"):
        with monkeypatch.context() as other, torch.no_grad(), caplog.at_level("DEBUG", logger="vllm_ir"):
            other.setattr(torch_frames, name, elsewhere)
            torch.compiler.reset()
            compiled(returned)(*inputs())
        assert any("has no attribute 'nowhere'" in record.getMessage() for record in caplog.records)
        caplog.clear()


@pytest.mark.parametrize(
    ("coming", "line"),
    [
        ([("LOAD_FAST", "x"), ("BINARY_OP", None)], 3),
        ([("LOAD_FAST", "x"), ("LOAD_ATTR", "shape")], None),
        ([("LOAD_FAST", "x"), ("LOAD_METHOD", "sum")], 3),
        ([("LOAD_FAST", "x"), ("POP_JUMP_IF_NOT_NONE", None)], None),
        ([("LOAD_FAST", "x"), ("LOAD_CONST", None), ("IS_OP", 0)], None),
        ([("LOAD_FAST", "x"), ("LOAD_CONST", None), ("BUILD_TUPLE", 2)], 3),
        ([("LOAD_FAST_LOAD_FAST", ("x", "y")), ("LOAD_ATTR", "shape")], 3),
        ([("LOAD_FAST_LOAD_FAST", ("y", "x")), ("LOAD_ATTR", "shape")], None),
        ([("STORE_FAST_LOAD_FAST", ("x", "y")), ("BINARY_OP", None)], None),
        ([("STORE_FAST_LOAD_FAST", ("y", "x")), ("BINARY_OP", None)], 3),
        ([("LOAD_FAST", "x"), ("LOAD_ATTR", "dtype"), ("LOAD_FAST_CHECK", "x")], 3),
        ([("STORE_FAST", "x"), ("LOAD_FAST", "y")], None),
    ],
)
def test_reads_of_a_variable_that_may_come(coming: list[tuple[str, Any]], line: int | None) -> None:
    """As every supported Python writes them; what asks for metadata, or whether it is None, is none."""
    instructions = [SimpleNamespace(opname=name, argval=value, positions=None, starts_line=3) for name, value in coming]
    done = SimpleNamespace(opname="LOAD_FAST", argval="x", positions=None, starts_line=1)
    frame = SimpleNamespace(instructions=[done, *instructions], instruction_pointer=1)
    assert torch_frames._read(frame, "x") == line
