"""Provider `unfused` runs an op's parts, each of which selects for itself; what has no parts cannot run so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from vllm_ir import IrOpPriorityConfig, KernelConfig, errors, fingerprint, ops, register_op
from vllm_ir.environment import Environment
from vllm_ir.isolation import isolated
from vllm_ir.platforms import Platform
from vllm_ir.plugins.forecast import forecast
from vllm_ir.plugins.static import survey
from vllm_ir.policy import Policy
from vllm_ir.preferences import Preferences
from vllm_ir.priority import Layer
from vllm_ir.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.composition import Parts

SCALE = torch.tensor([0.013])
NORM: Any = ops.rms_norm_static_quant_fp8
ADD: Any = ops.fused_add_rms_norm_static_quant_fp8
HEADS: Any = ops.fused_qk_norm_rope


def given() -> tuple[Any, ...]:
    """Return one call's arguments of the norm that ends in 8 bits."""
    return torch.randn(3, 32), torch.rand(32) + 0.5, SCALE, 1e-5


@pytest.mark.usefixtures("state")
def test_each_part_selects_for_itself(add_provider: Callable[..., Any]) -> None:
    """A provider of a part runs in the fused op's place where that is asked for in parts, and nowhere else."""
    calls = add_provider(ops.rms_norm, "twice")
    x, weight, scale, epsilon = given()
    plain = NORM(x, weight, scale, epsilon)
    with ops.rms_norm.set_priority("twice"):
        assert torch.equal(NORM(x, weight, scale, epsilon).float(), plain.float())
        assert not calls
        with NORM.set_priority("unfused"):
            doubled = NORM(x, weight, scale, epsilon)
    assert len(calls) == 1
    wanted = ops.static_quant_fp8(ops.rms_norm(x, weight, epsilon) * 2, scale)
    assert torch.equal(doubled.float(), wanted.float())


@pytest.mark.parametrize("layer", ["variable", "flag", "config", "set_default", "set_priority", "every"])
def test_every_layer_can_ask_for_it(layer: str) -> None:
    """The name stands in any list, like a provider's."""
    told = {"VLLM_IR_OP_PRIORITY": f"{NORM.name}=unfused"} if layer == "variable" else {}
    with isolated(told):
        if layer == "flag":
            found, _ = IrOpPriorityConfig.from_arguments([f"--ir-op-priority.{NORM.name}=unfused,native"])
            found.apply(Layer.COMMAND_LINE)
        elif layer == "config":
            KernelConfig({NORM.name: ["unfused"]}).apply()
        elif layer == "every":
            IrOpPriorityConfig.with_default("unfused").apply()
            assert ops.rms_norm.dispatch(torch.ones(1, 8), None, 1e-5).provider == "native"
        elif layer == "set_default":
            NORM.set_default("unfused")
        if layer == "set_priority":
            with NORM.set_priority("unfused"):
                assert NORM.dispatch(*given()).provider == "unfused"
        else:
            assert NORM.dispatch(*given()).provider == "unfused"
            assert NORM.get_priority() == ["unfused"]


def test_an_op_without_parts_cannot() -> None:
    """At configuration, a sentence says so and which ops have parts; each layer is named as the one that asked."""
    with isolated():
        with pytest.raises(errors.NoParts) as caught:
            ops.rms_norm.set_default("unfused")
        assert caught.value.op == "rms_norm"
        assert {"fused_add_rms_norm", NORM.name, HEADS.name} <= set(caught.value.has)
        assert str(caught.value).startswith(
            "set_default: op 'rms_norm' cannot run 'unfused': it has no parts (ops with parts: "
        )
        assert str(caught.value).endswith("). Take 'unfused' out of the list of 'rms_norm'.")
        with pytest.raises(errors.NoParts, match="KernelConfig: "):
            KernelConfig({"silu_and_mul": "unfused"}).apply()
    with isolated({"VLLM_IR_OP_PRIORITY": "rms_norm=unfused"}), pytest.raises(errors.NoParts, match="OP_PRIORITY: "):
        ops.rms_norm(torch.ones(1, 8), None, 1e-5)


@pytest.mark.parametrize(("op", "offered"), [("rms_norm", False), ("silu_and_mul", False), (NORM.name, True)])
def test_a_misspelt_name_is_answered_with_what_the_op_has(op: str, offered: bool) -> None:
    """Only an op with parts is offered its parts, from files and in the process alike."""
    told: list[errors.UnknownProvider] = []
    with isolated(), pytest.raises(errors.UnknownProvider) as caught:
        getattr(ops, op).set_default("unfusd")
    told.append(caught.value)
    lists = Preferences(Environment.read({"VLLM_IR_OP_PRIORITY": f"{op}=unfusd"}), Settings())
    problem = forecast(
        op, survey(Environment.read({}), Platform(name="cpu", device_type="cpu"), installed=[], policy=Policy()), lists
    ).problem
    assert isinstance(problem, errors.UnknownProvider)
    told.append(problem)
    for error in told:
        assert ("unfused" in error.known) is offered
        assert ("Did you mean 'unfused'?" in str(error)) is offered
        assert "native" in error.known


@pytest.mark.usefixtures("state")
def test_what_is_donated_reaches_the_parts(add_provider: Callable[..., Any]) -> None:
    """An in-place kernel of a part writes what the caller has donated, and nothing where nothing was donated."""
    add_provider(ops.fused_add_rms_norm, "writes", 1.0, inplace=True)
    x, residual, weight = torch.randn(3, 32), torch.randn(3, 32), torch.rand(32)
    wanted = ADD(x, residual, weight, SCALE, 1e-5)
    kept = x.clone(), residual.clone()
    with ops.fused_add_rms_norm.set_priority("writes"), ADD.set_priority("unfused"):
        got = ADD(x, residual, weight, SCALE, 1e-5)
        assert torch.equal(x, kept[0])
        assert torch.equal(residual, kept[1])
        assert got[1].data_ptr() != residual.data_ptr()
        given_away = ADD.maybe_inplace(x, residual, weight, SCALE, 1e-5)
    assert given_away[1].data_ptr() == residual.data_ptr()
    for results in (got, given_away):
        assert torch.equal(results[0].float(), wanted[0].float())
        assert torch.equal(results[1], wanted[1])


@pytest.mark.usefixtures("state")
def test_what_a_meaning_made_is_given_away(add_provider: Callable[..., Any]) -> None:
    """An in-place kernel gets the normalised heads themselves, and no copy of them."""
    calls = add_provider(ops.rotary_embedding, "writes", 1.0, inplace=True)
    arguments = HEADS.generate_inputs(num_tokens=3)
    wanted = HEADS(*arguments)
    with ops.rotary_embedding.set_priority("writes"), HEADS.set_priority("unfused"):
        got = HEADS(*arguments)
    assert [x.data_ptr() for x in got] == [x.data_ptr() for x in calls[0][1:3]]
    assert all(map(torch.equal, got, wanted))


@pytest.mark.usefixtures("state")
def test_gradients_are_natives(add_provider: Callable[..., Any]) -> None:
    """Whoever runs the parts, the gradients are those of the op's native, in both overloads."""
    add_provider(ops.rms_norm, "twice")
    arguments = list(HEADS.generate_inputs(num_tokens=3))
    leaves = [i for i, value in enumerate(arguments) if isinstance(value, Tensor) and value.is_floating_point()][:4]

    def gradients(call: Any) -> list[Tensor]:
        """Return the gradients of query, key and weights."""
        now = [v.detach().requires_grad_() if i in leaves else v for i, v in enumerate(arguments)]
        results = call(*now)
        return list(torch.autograd.grad(sum(r.square().sum() for r in results), [now[i] for i in leaves]))

    wanted = gradients(HEADS.declaration.native)
    with HEADS.set_priority("unfused"):
        for call in (HEADS, HEADS.maybe_inplace, HEADS.torch_op):
            for mine, theirs in zip(gradients(call), wanted, strict=True):
                torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("state")
def test_explained_are_the_parts(add_provider: Callable[..., Any]) -> None:
    """The answer names who runs each part, asked with what the part would be given; nothing is computed."""

    def apart(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:  # noqa: ARG001
        """Take heads in a dimension of their own."""
        return x.dim() == 3

    calls = add_provider(ops.rms_norm, "wide", supports_args=apart)
    arguments = HEADS.generate_inputs(num_tokens=3)
    assert HEADS.explain(*arguments).parts == ()
    with ops.rms_norm.set_priority("wide"), HEADS.set_priority("unfused"):
        told = HEADS.explain(*arguments)
        assert [(part.op, part.selected) for part in told.parts] == [
            ("rms_norm", "wide"),
            ("rms_norm", "wide"),
            ("rotary_embedding", "native"),
        ]
        assert "   rms_norm: wide" in str(told)
        assert [part.op for part in HEADS.explain().parts] == ["rms_norm", "rotary_embedding"]
        assert not calls
        HEADS(*arguments)
        assert len(calls) == 2


def test_the_report_names_it() -> None:
    """Calls are counted for the fused op and for each of its parts."""
    with isolated({"VLLM_IR_COUNTERS": "1"}), NORM.set_priority("unfused"):
        NORM(*given())
        told = vllm_ir.report().ops
        assert told[NORM.name].calls == {"unfused": 1}
        assert told["rms_norm"].calls == {"native": 1}
        assert told["static_quant_fp8"].calls == {"native": 1}


@pytest.mark.parametrize("admitted", [False, True])
def test_batch_invariance_is_that_of_the_parts(admitted: bool) -> None:
    """It is admitted where each part has somebody who is, and refused with the part's reasons otherwise."""
    with isolated({"VLLM_BATCH_INVARIANT": "1"}):

        def steady(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
            """Run native."""
            normalized: Tensor = ops.rms_norm.declaration.native(x, weight, epsilon, variance_size)
            return normalized

        if not admitted:
            with pytest.raises(errors.UnusableProvider) as caught:
                NORM.set_default("unfused")
            assert caught.value.reason == (
                "nothing may run its part rms_norm (native: it is not declared batch-invariant, which"
                " VLLM_BATCH_INVARIANT=1 asks for)"
            )
            return
        ops.rms_norm.register_impl("steady", batch_invariant=True)(steady)
        ops.rms_norm.set_default("steady")
        NORM.set_default("unfused")
        arguments = given()
        wanted = NORM.declaration.native(*arguments)
        assert torch.equal(NORM(*arguments).float(), wanted.float())
        assert [part.selected for part in NORM.explain(*arguments).parts] == ["steady", "native"]


def test_a_policy_refuses_providers_of_parts_and_not_the_parts() -> None:
    """A list of who may run leaves an op its parts, and holds for each of them."""
    with isolated({"VLLM_IR_PROVIDERS": ""}), NORM.set_priority("unfused"):
        assert NORM.dispatch(*given()).provider == "unfused"


@pytest.mark.usefixtures("state")
def test_an_op_of_a_program() -> None:
    """Any program composes ops, also of composed ones; native is made of natives, and parts are taken apart in turn."""

    @register_op(parts=(NORM, ops.static_quant_fp8), name="unfused_probe_pair")
    def pair(parts: Parts, x: Tensor, weight: Tensor | None, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised rows and the rows in 8 bits."""
        return parts.rms_norm_static_quant_fp8(x, weight, scale, 1e-5), parts.static_quant_fp8(x, scale)

    x, weight, scale, epsilon = given()
    wanted = NORM(x, weight, scale, epsilon), ops.static_quant_fp8(x, scale)
    assert str(pair.declaration.signature) == "(x, weight, scale)"
    with pair.set_priority("unfused"), NORM.set_priority("unfused"):
        told = pair.explain(x, weight, scale)
        assert [[part.op for part in each.parts] for each in told.parts] == [["rms_norm", "static_quant_fp8"], []]
        for mine, theirs in zip(pair(x, weight, scale), wanted, strict=True):
            assert torch.equal(mine.float(), theirs.float())


def two(parts: Parts, x: Tensor) -> Tensor:
    """Return x through a gate."""
    gated: Tensor = parts.silu_and_mul(x)
    return gated


def partless(x: Tensor) -> Tensor:
    """Return x through a gate."""
    gated: Tensor = ops.silu_and_mul(x)
    return gated


@pytest.mark.parametrize(
    ("function", "declared", "error", "sentence"),
    [
        (partless, {"parts": (ops.silu_and_mul,)}, errors.BadSignature, "it has parts, and its function does not take"),
        (partless, {"parts": ("silu_and_mul",)}, errors.BadValue, "parts is ('silu_and_mul',), wanted a tuple of ops"),
        (partless, {"parts": ops.silu_and_mul}, errors.BadValue, "wanted a tuple of ops"),
        (partless, {"expansion": two}, errors.BadValue, "wanted None, or the parts that it calls"),
        (
            ops.rms_norm.declaration.native,
            {"parts": (ops.silu_and_mul,), "expansion": two, "name": "unfused_probe_norm"},
            errors.BadSignature,
            "behind parts it takes (x), wanted (x, weight, epsilon, variance_size=None)",
        ),
    ],
    ids=["no parts taken", "names", "one op", "expansion alone", "other parameters"],
)
@pytest.mark.usefixtures("state")
def test_what_cannot_be_composed(function: Any, declared: Any, error: Any, sentence: str) -> None:
    """A declaration whose parts do not fit says what is wrong, and nothing is registered."""
    before = vllm_ir.runtime.current().registry.names
    with pytest.raises(error) as caught:
        register_op(**declared)(function)
    assert sentence in str(caught.value)
    assert vllm_ir.runtime.current().registry.names == before


@pytest.mark.usefixtures("state")
def test_digests_hold_the_parts() -> None:
    """Another meaning of a part is another meaning of the whole, for native and for the parts alike."""
    before = fingerprint.native_digest(NORM), fingerprint.implementation_digest(NORM.impls["unfused"])
    saved = ops.rms_norm.save()

    def other(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:  # noqa: ARG001
        """Stand in for the fake."""
        return torch.empty_like(x)

    ops.rms_norm.register_fake(other)
    fingerprint.forget()
    after = fingerprint.native_digest(NORM), fingerprint.implementation_digest(NORM.impls["unfused"])
    ops.rms_norm.load(saved)
    fingerprint.forget()
    assert all(mine != theirs for mine, theirs in zip(before, after, strict=True))
    assert before == (fingerprint.native_digest(NORM), fingerprint.implementation_digest(NORM.impls["unfused"]))
