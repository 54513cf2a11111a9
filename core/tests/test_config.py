"""What programs configure: open to any op, checked where it takes effect, all or nothing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from vllm_ir import IrOpPriorityConfig, KernelConfig, Unsupported, errors, ops
from vllm_ir.isolation import isolated
from vllm_ir.landscape import Landscape
from vllm_ir.priority import Layer
from vllm_ir.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.op import IrOp

X = torch.ones(2, 8)
KNOWN = "'silu_and_mul', 'gelu_and_mul', 'rms_norm', 'fused_add_rms_norm', 'rotary_embedding'"


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


def by_set_default(lists: dict[str, str]) -> None:
    """Configure through `set_default`."""
    for op, names in lists.items():
        vllm_ir.runtime.current().registry.get(op, "set_default").set_default(names)


def by_set_priority(lists: dict[str, str]) -> None:
    """Configure through scopes."""
    for op, names in lists.items():
        with vllm_ir.runtime.current().registry.get(op, "set_priority").set_priority(names):
            pytest.fail("the scope opened")


LAYERS: dict[str, Callable[[dict[str, str]], None]] = {
    "--ir-op-priority": lambda lists: IrOpPriorityConfig(lists).apply(Layer.COMMAND_LINE),
    "KernelConfig": lambda lists: KernelConfig(lists).apply(),
    "set_default": by_set_default,
    "set_priority": by_set_priority,
}
"""The layers that a program can set while it runs, by the words that name them in an error."""

NAMES: list[tuple[dict[str, str], type[errors.IrError], str]] = [
    (
        {"rms_nrom": "native"},
        errors.UnknownOp,
        f"op 'rms_nrom' is not registered (registered ops: {KNOWN}). Did you mean 'rms_norm'?",
    ),
    (
        {"silu_and_mul": "fsat,native"},
        errors.UnknownProvider,
        (
            "provider 'fsat' for op 'silu_and_mul' is not installed (there are: 'native', 'fast', 'static', 'away')."
            " Did you mean 'fast'? Install its distribution, or see `vllm-ir list`."
        ),
    ),
    (
        {"gelu_and_mul": "native,fast"},
        errors.ProviderLacksOp,
        (
            "provider 'fast' has no implementation of op 'gelu_and_mul' (it implements: 'silu_and_mul'). Take it out of"
            " the list of 'gelu_and_mul'."
        ),
    ),
    (
        {"silu_and_mul": "static"},
        errors.UnusableProvider,
        "provider 'static' cannot run op 'silu_and_mul' here: needs a library. Mend that, or take it out of the list.",
    ),
    (
        {"silu_and_mul": "away"},
        errors.UnusableProvider,
        "provider 'away' cannot run op 'silu_and_mul' here: needs CUDA 12. Mend that, or take it out of the list.",
    ),
]
LANDSCAPE = Landscape(distributions={"native": "vllm-ir", "fast": "dist-fast"}, unusable={"away": "needs CUDA 12."})


def fill() -> None:
    """Register one provider that runs, and one that cannot."""
    ops.silu_and_mul.register_impl("fast")(silu)
    ops.silu_and_mul.register_impl("static", supported=Unsupported("needs a library"))(silu)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("lists", "kind", "sentence"), NAMES)
def test_wrong_names_are_errors_at_configuration(
    layer: str, lists: dict[str, str], kind: type[errors.IrError], sentence: str
) -> None:
    """From every layer, with the layer's name, what exists and the nearest name; nothing is set."""
    with isolated(landscape=LANDSCAPE):
        fill()
        with pytest.raises(kind) as caught:
            LAYERS[layer](lists)
        assert ops.silu_and_mul.get_priority() == ["native"]
    by = f"{layer}.rms_nrom" if layer == "--ir-op-priority" and kind is errors.UnknownOp else layer
    assert str(caught.value) == f"{by}: {sentence}"
    assert type(caught.value) is kind
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - made here
    assert caught.value.layer == by  # type: ignore[attr-defined]


@pytest.mark.parametrize("layer", ["VLLM_IR_OP_PRIORITY", "vllm-ir.toml"])
@pytest.mark.parametrize(("lists", "kind", "sentence"), NAMES)
def test_wrong_names_in_a_variable_or_a_file(
    layer: str, lists: dict[str, str], kind: type[errors.IrError], sentence: str
) -> None:
    """They are read at the first use, and raise there, at every later one, and wherever an order is asked for."""
    text = ";".join(f"{op}={names}" for op, names in lists.items())
    in_file = layer == "vllm-ir.toml"
    variables = {} if in_file else {"VLLM_IR_OP_PRIORITY": text}
    split = {op: tuple(names.split(",")) for op, names in lists.items()}
    settings = Settings(Path(layer), split) if in_file else Settings()
    with isolated(variables, settings, LANDSCAPE):
        fill()
        name = next(iter(lists))
        op = ops.silu_and_mul if name == "rms_nrom" else vllm_ir.ops.__getattr__(name)
        calls: list[Callable[[], object]] = [
            lambda: op(X),
            lambda: op(X),
            lambda: op.torch_op(X),
            lambda: op.dispatch(X),
            op.get_priority,
        ]
        for call in calls:
            with pytest.raises(kind) as caught:
                call()
            assert str(caught.value) == f"{layer}: {sentence}"


def test_a_malformed_variable_is_an_error_at_the_first_use() -> None:
    """The text is shown whole, with how it is written."""
    with isolated({"VLLM_IR_OP_PRIORITY": "silu_and_mul"}):
        for call in (lambda: ops.silu_and_mul(X), ops.silu_and_mul.get_priority, vllm_ir.report):
            with pytest.raises(errors.MalformedPriority) as caught:
                call()
            assert str(caught.value) == (
                "VLLM_IR_OP_PRIORITY: 'silu_and_mul' is no priority list: 'silu_and_mul' has no '='. Write"
                " op=provider,provider with ';' between ops, for example rms_norm=fast,native;silu_and_mul=native."
            )


def test_a_default_for_every_op_names_what_exists() -> None:
    """A provider that lacks an op is dropped there; a name that nobody has, or that cannot run here, is a mistake."""
    with isolated(landscape=LANDSCAPE):
        fill()
        IrOpPriorityConfig.with_default("fast").apply()
        with pytest.raises(errors.UnknownProvider) as unknown:
            IrOpPriorityConfig.with_default("fsat").apply()
        with pytest.raises(errors.UnusableProvider) as unusable, IrOpPriorityConfig.with_default("away").set_priority():
            pytest.fail("the scope opened")
        assert is_seven(ops.silu_and_mul)
    assert str(unknown.value) == (
        "KernelConfig: provider 'fsat' for any op is not installed (there are: 'native', 'fast', 'static', 'away')."
        " Did you mean 'fast'? Install its distribution, or see `vllm-ir list`."
    )
    assert str(unusable.value) == (
        "set_priority: provider 'away' cannot run any op here: needs CUDA 12. Mend that, or take it out of the list."
    )
    assert (unknown.value.op, unusable.value.op) == (None, None)
