"""From what every layer wants to who runs: the layers of the contract end to end, and who is left out and why."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import vllm_ir
from vllm_ir import IrOpPriorityConfig, KernelConfig, Unsupported, errors, ops
from vllm_ir.isolation import isolated
from vllm_ir.landscape import Landscape
from vllm_ir.platforms import Platform
from vllm_ir.priority import Layer
from vllm_ir.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.op import IrOp
    from vllm_ir.verdict import Explanation

MARKS = {name: float(number) for number, name in enumerate("abcdefgh", 2)}
X = torch.ones(2, 8)


def mark(op: IrOp, provider: str, **declared: object) -> None:
    """Register an implementation of silu_and_mul whose result is the provider's mark."""
    value = MARKS[provider]

    def kernel(x: torch.Tensor) -> torch.Tensor:
        """Return the mark."""
        return torch.full_like(x[..., : x.shape[-1] // 2], value)

    op.register_impl(provider, **declared)(kernel)  # type: ignore[arg-type]


def ran(op: IrOp) -> str:
    """Return the provider that runs a call."""
    value = op(X)[0, 0].item()
    return next((name for name, known in MARKS.items() if known == value), "native")


def layers(explained: Explanation) -> list[tuple[str, str]]:
    """Return each candidate with the layer that put it there."""
    return [(verdict.provider, verdict.layer) for verdict in explained.verdicts]


def test_every_layer_in_its_order() -> None:
    """Each layer goes before those below it, and every entry shows who put it there."""
    landscape = Landscape(
        provider_defaults={False: {"silu_and_mul": ("a",)}}, platform_defaults={False: {"silu_and_mul": ("b",)}}
    )
    settings = Settings(Path("vllm-ir.toml"), {"silu_and_mul": ("c",)})
    with isolated({"VLLM_IR_OP_PRIORITY": "silu_and_mul=d"}, settings, landscape):
        op = ops.silu_and_mul
        for provider in MARKS:
            mark(op, provider)
        arguments, rest = IrOpPriorityConfig.from_arguments(["run", "--ir-op-priority.silu_and_mul=e"])
        arguments.apply(Layer.COMMAND_LINE)
        KernelConfig({"silu_and_mul": "f"}).apply()
        op.set_default(["g"])
        with op.set_priority(["h"]):
            assert layers(op.explain(X)) == [
                ("h", "set_priority"),
                ("g", "set_default"),
                ("f", "KernelConfig"),
                ("e", "--ir-op-priority"),
                ("d", "VLLM_IR_OP_PRIORITY"),
                ("c", "vllm-ir.toml"),
                ("b", "platform default"),
                ("a", "provider default"),
                ("native", "built-in"),
            ]
            assert ran(op) == "h"
        assert rest == ["run"]


@pytest.mark.parametrize("top", range(1, 9))
def test_the_highest_layer_that_says_something_runs(top: int) -> None:
    """With layers up to one set, the one on top decides; the others follow behind it in their order."""
    names = "abcdefgh"[:top]
    landscape = Landscape(
        provider_defaults={False: {"silu_and_mul": ("a",)}},
        platform_defaults={False: {"silu_and_mul": ("b",)}} if top >= 2 else {},
    )
    settings = Settings(Path("pyproject.toml"), {"silu_and_mul": ("c",)}) if top >= 3 else Settings()
    variables = {"VLLM_IR_OP_PRIORITY": "silu_and_mul=d"} if top >= 4 else {}
    with isolated(variables, settings, landscape):
        op = ops.silu_and_mul
        for provider in MARKS:
            mark(op, provider)
        if top >= 5:
            IrOpPriorityConfig(silu_and_mul="e").apply(Layer.COMMAND_LINE)
        if top >= 6:
            IrOpPriorityConfig(silu_and_mul="f").apply()
        if top >= 7:
            op.set_default("g")
        with op.set_priority("h" if top >= 8 else names[-1]):
            assert ran(op) == names[-1]
        if top < 8:
            assert ran(op) == names[-1]
        assert [v.provider for v in op.explain().verdicts if v.layer] == [*reversed(names[: min(top, 7)]), "native"]


def test_a_later_layer_lifts_a_provider_from_an_earlier_one() -> None:
    """It stands once, at the higher place, and what it left stays in order."""
    with isolated(landscape=Landscape(provider_defaults={False: {"silu_and_mul": ("a", "b", "c")}})):
        op = ops.silu_and_mul
        for provider in "abc":
            mark(op, provider)
        op.set_default(["c", "native"])
        assert layers(op.explain()) == [
            ("c", "set_default"),
            ("native", "set_default"),
            ("a", "provider default"),
            ("b", "provider default"),
        ]
        op.set_default([])
        assert (ran(op), op.get_priority()) == ("native", ["native"])


def test_get_priority_stops_at_the_first_that_takes_every_call() -> None:
    """What stands behind it, or cannot run here, is not reached."""
    with isolated(landscape=Landscape(provider_defaults={False: {"silu_and_mul": ("a", "gone", "b", "c", "d")}})):
        op = ops.silu_and_mul
        mark(op, "a", supports_args=lambda x: x.dtype == torch.float16)
        mark(op, "b", supported=False)
        mark(op, "c")
        mark(op, "d")
        assert op.get_priority() == ["a", "c"]
        assert op.supported_providers() == ["native", "a", "c", "d"]
        assert ran(op) == "c"


def test_a_default_that_lacks_the_op_is_dropped_and_shown() -> None:
    """A platform may name a provider for all ops; where it has none, it stands with its reason and nothing fails."""
    landscape = Landscape(
        platform_defaults={False: {"silu_and_mul": ("a", "b", "c"), "gelu_and_mul": ("a",)}},
        distributions={"a": "dist-a", "native": "vllm-ir"},
        unusable={"b": "needs CUDA, this is a CPU"},
    )
    with isolated(landscape=landscape):
        explained = ops.silu_and_mul.explain(X)
        assert explained.selected == "native"
        assert [(v.provider, v.reason) for v in explained.verdicts] == [
            ("a", "it has no implementation of silu_and_mul"),
            ("b", "needs CUDA, this is a CPU"),
            ("c", "it is not installed"),
            ("native", None),
        ]
        assert ops.silu_and_mul(X).shape == (2, 4)


def test_native_first_when_inductor_compiles() -> None:
    """On built-in platforms the order for compiled graphs begins with native; a platform may say otherwise."""
    defaults = {True: {"silu_and_mul": ("a",)}, False: {"silu_and_mul": ("a",)}}

    class Vendor(Platform):
        """A platform whose kernels beat the compiler."""

        native_first_when_compiling = False

    for platform, first in ((None, "native"), (Vendor(name="vendor", device_type="cpu"), "a")):
        with isolated(landscape=Landscape(platform=platform, provider_defaults=defaults)):
            op = ops.silu_and_mul
            mark(op, "a")
            assert op.explain(compiling=True).selected == first
            assert op.explain(compiling=False).selected == "a"
            assert op.explain(compiling=True).compiling
            op.set_default("a")
            assert op.explain(compiling=True).selected == "a"


def test_batch_invariance_admits_only_what_is_declared() -> None:
    """A default that is not declared is left out with the reason; the first that is runs."""
    landscape = Landscape(provider_defaults={False: {"silu_and_mul": ("a", "b", "c")}})
    with isolated({"VLLM_BATCH_INVARIANT": "1"}, landscape=landscape):
        op = ops.silu_and_mul
        mark(op, "a")
        mark(op, "b", batch_invariant=True)
        assert (ran(op), op.get_priority()) == ("b", ["b"])
        assert op.explain().verdicts[0].reason == (
            "it is not declared batch-invariant, which VLLM_BATCH_INVARIANT=1 asks for"
        )
    with isolated(landscape=landscape):
        mark(ops.silu_and_mul, "a")
        assert ran(ops.silu_and_mul) == "a"


def test_batch_invariance_without_an_admissible_candidate() -> None:
    """No silent native: the call, `dispatch` and the torch op raise, `explain` shows why."""
    with isolated({"VLLM_BATCH_INVARIANT": "1"}):
        op = vllm_ir.register_op(name="variant")(lambda_like)
        wanted = r"No implementation of op 'variant' may run: native: it is not declared batch-invariant"
        for call in (op, op.dispatch, op.torch_op):
            with pytest.raises(errors.NoImplementation, match=wanted):
                call(X)
        assert op.explain(X).selected is None
        assert str(op.explain(X)).startswith("variant: nothing may run")
        assert op.get_priority() == []


def lambda_like(x: torch.Tensor) -> torch.Tensor:
    """Return x times two; nothing is promised of rows."""
    return x * 2


def test_batch_invariance_takes_a_native_that_promises_it() -> None:
    """An op's author may declare eager native batch-invariant."""
    with isolated({"VLLM_BATCH_INVARIANT": "1"}):
        op = vllm_ir.register_op(name="invariant", batch_invariant=True)(lambda_like)
        assert op.batch_invariant
        assert op(X)[0, 0].item() == 2.0


def test_naming_what_is_not_batch_invariant_is_an_error() -> None:
    """At configuration, with the reason; the order stays what it was."""
    with isolated({"VLLM_BATCH_INVARIANT": "1"}):
        op = ops.silu_and_mul
        mark(op, "a")
        mark(op, "b", batch_invariant=True)
        op.set_default("b")
        attempts: list[Callable[[], object]] = [
            lambda: op.set_default("a"),
            lambda: contextlib.ExitStack().enter_context(op.set_priority("a")),
            lambda: KernelConfig({"silu_and_mul": "a"}).apply(),
        ]
        for configure in attempts:
            with pytest.raises(errors.UnusableProvider) as caught:
                configure()
            assert caught.value.reason == "it is not declared batch-invariant, which VLLM_BATCH_INVARIANT=1 asks for"
        assert ran(op) == "b"


def test_an_unsupported_implementation_keeps_its_reason() -> None:
    """`Unsupported(sentence)` is told as written; a plain False gets a sentence of its own."""
    with isolated(landscape=Landscape(provider_defaults={False: {"silu_and_mul": ("a", "b")}})):
        op = ops.silu_and_mul
        mark(op, "a", supported=Unsupported("needs a library that is not here"))
        mark(op, "b", supported=False)
        assert [v.reason for v in op.explain().verdicts[:2]] == [
            "needs a library that is not here",
            "it was registered as not supported on this platform",
        ]
        with pytest.raises(errors.UnusableProvider, match="here: needs a library that is not here"):
            op.set_default("a")


def test_an_implementation_registered_after_the_priority_takes_its_place() -> None:
    """In defaults of every kind, and in a scope that is open."""
    landscape = Landscape(
        provider_defaults={False: {"silu_and_mul": ("a", "b")}}, distributions={"a": "dist-a", "b": "dist-b"}
    )
    with isolated(landscape=landscape):
        op = ops.silu_and_mul
        assert ran(op) == "native"
        mark(op, "b")
        assert ran(op) == "b"
        with op.set_priority("native"), IrOpPriorityConfig.with_default("a").set_priority():
            assert ran(op) == "native"
            mark(op, "a")
            assert ran(op) == "a"
        assert ran(op) == "a"
