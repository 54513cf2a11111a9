"""A wrong configuration is an error that names its layer and what exists, wherever it came from; nothing is set."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

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
KNOWN = ", ".join(repr(name) for name in vllm_ir.runtime.current().registry.names if name in ops.__all__)


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return sevens in the shape of silu_and_mul's result."""
    return torch.full_like(x[..., : x.shape[-1] // 2], 7.0)


def is_seven(op: IrOp) -> bool:
    """Tell whether a call ran the marked implementation."""
    return bool((op(X) == 7.0).all())


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
        "KernelConfig: provider 'fsat' for any op is not installed (there are: 'native', 'fast', 'static', 'unfused',"
        " 'away'). Did you mean 'fast'? Install its distribution, or see `vllm-ir list`."
    )
    assert str(unusable.value) == (
        "set_priority: provider 'away' cannot run any op here: needs CUDA 12. Mend that, or take it out of the list."
    )
    assert (unknown.value.op, unusable.value.op) == (None, None)
