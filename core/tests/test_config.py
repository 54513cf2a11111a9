"""What programs configure: open to any op, checked where it takes effect, all or nothing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from vllm_ir import IrOpPriorityConfig, KernelConfig, errors, ops
from vllm_ir.priority import Layer

if TYPE_CHECKING:
    from vllm_ir.op import IrOp

X = torch.ones(2, 8)


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return sevens in the shape of silu_and_mul's result."""
    return torch.full_like(x[..., : x.shape[-1] // 2], 7.0)


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Return sevens in the shape of gelu_and_mul's result."""
    del approximate
    return torch.full_like(x[..., : x.shape[-1] // 2], 7.0)


def is_seven(op: IrOp) -> bool:
    """Tell whether a call ran the marked implementation."""
    return bool((op(X) == 7.0).all())


def test_lists_and_texts_and_keywords() -> None:
    """All ways to write a configuration give the same one."""
    expected = {"rms_norm": ("a", "b"), "not_registered_yet": ("native",)}
    for config in (
        IrOpPriorityConfig(rms_norm=["a", "b"], not_registered_yet=[]),
        IrOpPriorityConfig({"rms_norm": "a, b,a", "not_registered_yet": ""}),
        IrOpPriorityConfig({"rms_norm": ("x",), "not_registered_yet": "native"}, rms_norm="a,b"),
        IrOpPriorityConfig.from_text("rms_norm=a,b;not_registered_yet="),
        IrOpPriorityConfig.from_arguments(["--ir-op-priority.rms_norm=a,b", "--ir-op-priority.not_registered_yet", ""])[
            0
        ],
    ):
        assert dict(config) == expected
        assert isinstance(config, Mapping)
        assert (len(config), list(config)) == (2, ["rms_norm", "not_registered_yet"])


def test_attributes_are_ops() -> None:
    """`config.rms_norm` is `config["rms_norm"]`; a registered op without a list has none, another name is an error."""
    config = IrOpPriorityConfig(rms_norm=["a"])
    assert config.rms_norm == config["rms_norm"] == ("a",)
    assert config.silu_and_mul == ()
    with pytest.raises(KeyError):
        config["silu_and_mul"]
    with pytest.raises(errors.UnknownOp, match=r"op 'rms_nrom' is not registered .* Did you mean 'rms_norm'"):
        _ = config.rms_nrom
    assert not hasattr(config, "rms_nrom")
    assert not hasattr(config, "__wrapped__")


def test_a_default_for_every_op() -> None:
    """It holds where no list of an op's own does, and is no entry itself."""
    config = IrOpPriorityConfig.with_default("a,native", rms_norm="b")
    assert (config.rms_norm, config.silu_and_mul, config["anything"]) == (("b",), ("a", "native"), ("a", "native"))
    assert dict(config) == {"rms_norm": ("b",)}
    assert config.for_every_op == ("a", "native")


@pytest.mark.parametrize(
    "config",
    [
        IrOpPriorityConfig(),
        IrOpPriorityConfig(rms_norm=["a", "native"]),
        IrOpPriorityConfig.with_default(["a"]),
        IrOpPriorityConfig.with_default("a", rms_norm="b"),
    ],
)
def test_a_configuration_can_be_sent_copied_and_read(config: IrOpPriorityConfig) -> None:
    """Worker processes get it pickled; what it shows can be evaluated."""
    shown = eval(repr(config), {"IrOpPriorityConfig": IrOpPriorityConfig})  # noqa: S307 - our own repr
    for same in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), shown):  # noqa: S301 - made here
        assert dict(same) == dict(config)
        assert same.for_every_op == config.for_every_op
    kernel = pickle.loads(pickle.dumps(KernelConfig(config)))  # noqa: S301 - made here
    assert dict(kernel.ir_op_priority) == dict(config)
    assert repr(KernelConfig(config)) == f"KernelConfig(ir_op_priority={config!r})"


@pytest.mark.parametrize("wrong", [5, None, [5], {"a": 1}])
def test_what_is_no_list_is_refused_at_once(wrong: Any) -> None:
    """The error is of the configuration, whoever made it."""
    for make in (
        lambda: IrOpPriorityConfig(rms_norm=wrong),
        lambda: IrOpPriorityConfig.with_default(wrong),
        lambda: KernelConfig({"rms_norm": wrong}),
    ):
        with pytest.raises(errors.MalformedPriority, match="wanted provider names"):
            make()


@pytest.mark.parametrize("make", [IrOpPriorityConfig, KernelConfig])
def test_a_configuration_of_what_is_no_mapping(make: Any) -> None:
    """Lists have to be by op."""
    with pytest.raises(errors.MalformedPriority, match="5' is no priority list: wanted a mapping from ops"):
        make(5)


@pytest.mark.usefixtures("state")
def test_applying_replaces_what_the_layer_wanted() -> None:
    """The second configuration of a layer does not add to the first."""
    ops.silu_and_mul.register_impl("a")(silu)
    ops.gelu_and_mul.register_impl("a")(gelu)
    IrOpPriorityConfig(silu_and_mul="a").apply()
    assert (is_seven(ops.silu_and_mul), is_seven(ops.gelu_and_mul)) == (True, False)
    IrOpPriorityConfig(gelu_and_mul="a").apply()
    assert (is_seven(ops.silu_and_mul), is_seven(ops.gelu_and_mul)) == (False, True)
    KernelConfig().apply()
    assert (is_seven(ops.silu_and_mul), is_seven(ops.gelu_and_mul)) == (False, False)


@pytest.mark.usefixtures("state")
def test_layers_do_not_replace_each_other() -> None:
    """The command line's list stays when a program applies its own."""
    ops.silu_and_mul.register_impl("a")(silu)
    IrOpPriorityConfig(silu_and_mul="a").apply(Layer.COMMAND_LINE)
    KernelConfig({"gelu_and_mul": "native"}).apply()
    assert is_seven(ops.silu_and_mul)
    assert ops.silu_and_mul.explain().verdicts[0].layer == "--ir-op-priority"


@pytest.mark.usefixtures("state")
def test_applying_is_all_or_nothing() -> None:
    """One wrong name, and neither the right ones hold nor are the old ones gone."""
    ops.silu_and_mul.register_impl("a")(silu)
    ops.gelu_and_mul.register_impl("a")(gelu)
    IrOpPriorityConfig(silu_and_mul="a").apply()
    for wrong in (
        IrOpPriorityConfig(gelu_and_mul="a", rms_norm="nope"),
        IrOpPriorityConfig(gelu_and_mul="a", rms_nrom="native"),
        IrOpPriorityConfig.with_default("nope", gelu_and_mul="a"),
    ):
        with pytest.raises(errors.ConfigurationError):
            wrong.apply()
        with pytest.raises(errors.ConfigurationError), wrong.set_priority():
            pytest.fail("the scope opened")
        assert (is_seven(ops.silu_and_mul), is_seven(ops.gelu_and_mul)) == (True, False)


@pytest.mark.usefixtures("state")
def test_a_scoped_configuration() -> None:
    """It holds for its ops while it is open, also if what is inside fails."""
    ops.silu_and_mul.register_impl("a")(silu)
    ops.gelu_and_mul.register_impl("a")(gelu)
    config = IrOpPriorityConfig(silu_and_mul="a", gelu_and_mul="a")
    with pytest.raises(ZeroDivisionError), config.set_priority():
        assert is_seven(ops.silu_and_mul)
        assert is_seven(ops.gelu_and_mul)
        _ = 1 / 0
    assert (is_seven(ops.silu_and_mul), is_seven(ops.gelu_and_mul)) == (False, False)


@pytest.mark.usefixtures("state")
def test_a_default_drops_providers_where_they_lack_the_op() -> None:
    """For every op, also one that is registered later; the op's own list is not touched."""
    ops.silu_and_mul.register_impl("a")(silu)
    ops.gelu_and_mul.register_impl("a")(gelu)
    config = IrOpPriorityConfig.with_default(["a"], gelu_and_mul=["native"])
    config.apply()
    assert (is_seven(ops.silu_and_mul), is_seven(ops.gelu_and_mul)) == (True, False)
    assert ops.rms_norm.get_priority() == ["native"]
    later = vllm_ir.register_op(name="registered_later")(silu)
    later.register_impl("a")(eights)
    assert later.get_priority() == ["a"]
    assert ops.rms_norm.explain().verdicts[0].reason == "it is not installed"
    with KernelConfig().ir_op_priority.set_priority(), config.set_priority():
        assert (is_seven(ops.silu_and_mul), is_seven(ops.gelu_and_mul)) == (True, False)


def eights(x: torch.Tensor) -> torch.Tensor:
    """Return eights."""
    return torch.full_like(x, 8.0)
