"""What a user may ask of a compilation, and what is said about everything else."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._inductor.config
from vllm_ir import IrOpPriorityConfig, ops
from vllm_ir.compile.options import CompileOptions
from vllm_ir.compile.passes import GraphPass
from vllm_ir.errors import (
    BadCompileOption,
    MalformedPriority,
    UnknownCompileOption,
    UnknownOp,
    UnknownProvider,
)

if TYPE_CHECKING:
    from vllm_ir.runtime import Runtime


class Nothing(GraphPass):
    """Leaves graphs as they are."""

    def apply(self, graph: torch.fx.Graph) -> int:
        """Leave a graph as it is."""
        assert graph is not None
        return 0


def lower(module: torch.fx.GraphModule, _inputs: Any) -> Any:
    """Be another compiler."""
    return module


def test_nothing_asked_is_nothing_set() -> None:
    """The default mode is no mode."""
    assert CompileOptions.read() == CompileOptions.read({}, "default") == CompileOptions()


def test_own_options_and_inductors_are_told_apart() -> None:
    """Dashes are underscores, as for torch.compile; a filter of guards is torch.compile's own."""
    given = {
        "priority": {"rms_norm": "a, b"},
        "passes": Nothing(),
        "exact": True,
        "max-autotune": True,
        "triton.cudagraphs": False,
        "guard_filter_fn": list,
    }
    found = CompileOptions.read(given, "max-autotune-no-cudagraphs")
    assert dict(found.priority) == {"rms_norm": ("a", "b")}
    assert [type(each) for each in found.passes] == [Nothing]
    assert (found.exact, found.mode) == (True, "max-autotune-no-cudagraphs")
    assert found.inductor == {"max_autotune": True, "triton.cudagraphs": False}
    assert len(given) == 6


@pytest.mark.parametrize(
    ("option", "near"),
    [("prority", "priority"), ("pass", "passes"), ("max_autotun", "max_autotune"), ("lower-too", "lower_to")],
)
def test_an_unknown_option_is_told_with_the_nearest(option: str, near: str) -> None:
    """The nearest one may be ours or Inductor's."""
    with pytest.raises(UnknownCompileOption, match=f"Did you mean '{near}'") as caught:
        CompileOptions.read({option: 1})
    assert caught.value.known == ("priority", "passes", "fusions", "lower_to", "exact")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert str(again) == str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": "a"}, "'priority' is 'a', wanted a mapping of op names"),
        ({"priority": [("rms_norm", "a")]}, "wanted a mapping of op names"),
        ({"passes": [lower]}, "'passes' is a sequence with .*, wanted GraphPass objects"),
        ({"passes": 5}, "'passes' is 5, wanted a sequence of GraphPass objects"),
        ({"priority": {3: "native"}}, "'priority' is given for 3, wanted names of ops, or ops"),
        ({"priority": {ops.rms_norm: "a", "rms_norm": "b"}}, "'priority' is given twice for op 'rms_norm'"),
        ({3: 4}, "'options' is a mapping with the name 3, wanted texts as names"),
        ([1], r"'options' is \[1\], wanted a mapping of names to values"),
        ({"lower_to": lambda module: module}, r"'lower_to' is <lambda>\(module\): too many positional arguments"),
        ({"lower_to": "inductr"}, "'lower_to' is 'inductr', wanted 'inductor' or a function"),
        ({"lower_to": lower, "max_autotune": True}, "given with max_autotune, wanted no option of Inductor"),
        ({"exact": "yes"}, "'exact' is 'yes', wanted a bool"),
        ({"max_autotune": "yes"}, "'max_autotune' is 'yes', wanted a value of type bool"),
        ({"max_fusion_size": 1.5}, "'max_fusion_size' is 1.5, wanted a value of type int"),
        ({"use_post_grad_passes": False}, "'use_post_grad_passes' is off .*, wanted on"),
    ],
)
def test_a_value_that_cannot_be_is_told(options: Any, words: str) -> None:
    """With what was given and what is wanted."""
    with pytest.raises(BadCompileOption, match=words):
        CompileOptions.read(options)


def test_an_op_may_stand_for_its_name() -> None:
    """In a priority, whatever its op is called."""
    assert dict(CompileOptions.read({"priority": {ops.rms_norm: "a,b"}}).priority) == {"rms_norm": ("a", "b")}


def test_a_compiler_that_does_not_tell_its_arguments_is_taken() -> None:
    """Functions of an extension need not; what takes anything takes a graph and its inputs."""
    for compiler in (max, lambda *given: given[0]):
        assert CompileOptions.read({"lower_to": compiler}).lower_to is compiler


def test_a_mode_that_cannot_be_is_told() -> None:
    """One that does not exist, one beside another compiler, and one in which Inductor runs no passes."""
    with pytest.raises(BadCompileOption, match=r"'mode' is 'fast', wanted one of 'default', .*'reduce-overhead'"):
        CompileOptions.read({}, "fast")
    with pytest.raises(BadCompileOption, match="given with mode, wanted no option of Inductor"):
        CompileOptions.read({"lower_to": lower}, "reduce-overhead")
    if "lite" in torch._inductor.list_mode_options():
        with pytest.raises(BadCompileOption, match="is off \\(mode 'lite'\\)"):
            CompileOptions.read({}, "lite")


def test_passes_that_are_off_everywhere_are_told() -> None:
    """Also where the configuration of the process turns them off; another compiler needs none of Inductor's."""
    with torch._inductor.config.patch(use_post_grad_passes=False):
        with pytest.raises(BadCompileOption, match="use_post_grad_passes"):
            CompileOptions.read()
        assert CompileOptions.read({"lower_to": lower}).lower_to is lower


def test_a_malformed_list_is_told() -> None:
    """As everywhere where priorities are written."""
    with pytest.raises(MalformedPriority):
        CompileOptions.read({"priority": {"rms_norm": 5}})


def test_a_priority_is_a_layer_of_its_own(state: Runtime) -> None:
    """By op, or for all ops; names are looked up when it is needed."""
    assert state is not None
    wishes = CompileOptions.read({"priority": {"rms_norm": ["a"]}}).wishes()
    assert {op: wish.providers for op, wish in wishes.items()} == {"rms_norm": ("a",)}
    with pytest.raises(UnknownOp, match="Did you mean 'rms_norm'"):
        CompileOptions.read({"priority": {"rms_nrom": "a"}}).wishes()


def test_a_priority_for_every_op_leaves_out_who_lacks_one(state: Runtime) -> None:
    """As an `IrOpPriorityConfig` means it."""
    ops.rms_norm.register_impl("a")(ops.rms_norm.declaration.native)
    asked = IrOpPriorityConfig.with_default("a", silu_and_mul="native")
    wishes = CompileOptions.read({"priority": asked}).wishes()
    assert set(wishes) == set(state.registry.names)
    assert wishes["silu_and_mul"].providers == ("native",)
    assert all(wish.for_every_op for op, wish in wishes.items() if op != "silu_and_mul")
    with pytest.raises(UnknownProvider, match="'b'"):
        CompileOptions.read({"priority": IrOpPriorityConfig.with_default("b")}).wishes()
