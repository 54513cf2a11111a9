"""What files tell of an op's selection: on surveys made by hand, for any platform."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm_ir.environment import Environment
from vllm_ir.errors import NoParts, ProviderLacksOp, UnknownOp, UnknownProvider, UnusableProvider
from vllm_ir.platforms import Device, Platform
from vllm_ir.plugins.forecast import UNASKED, declared_ops, forecast
from vllm_ir.plugins.manifest_file import read_manifest
from vllm_ir.plugins.records import NOT_LOADED, DistributionRecord, Failure, ProviderRecord
from vllm_ir.plugins.static import Survey
from vllm_ir.preferences import Preferences
from vllm_ir.priority import Layer, Wish
from vllm_ir.settings import Settings

if TYPE_CHECKING:
    from vllm_ir.plugins.forecast import Forecast

CORE = """
schema = 1
provider-api = "1"
summary = "native"
[providers.native]
platforms = {cpu = {}, cuda = {}}
ops = {rms_norm = {}, silu_and_mul = {}}
"""

HOST = """
schema = 1
provider-api = "1"
summary = "host"
[providers.host]
platforms = {cpu = {}}
ops = {rms_norm = {}}
"""

FAST = """
schema = 1
provider-api = "1"
summary = "fast"
rank = 5
adds-ops = ["quick_op"]
[providers.fast]
platforms = {cuda = {}}
ops = {rms_norm = {batch-invariant = true}, quick_op = {}}
default = {eager = {rms_norm = ["cuda"]}, compiling = {rms_norm = ["cuda"]}}
"""


def record(name: str, text: str, failure: Failure | None = None) -> DistributionRecord:
    """Return the record of a distribution with this manifest."""
    manifest = read_manifest(text.encode(), f"{name}.toml", reserved=())
    providers = tuple(
        ProviderRecord(one.name, name, "1.0", NOT_LOADED, ops=tuple(one.ops), failure=failure, manifest=one)
        for one in manifest.providers.values()
    )
    return DistributionRecord(name, "1.0", "", name, name, providers, manifest=manifest)


def survey(failure: Failure | None = None) -> Survey:
    """Return a survey of the core and one fast distribution on a CUDA machine."""
    platform = Platform(name="cuda", device_type="cuda", devices=[Device("H200", (9, 0))])
    return Survey(platform, (record("vllm-ir", CORE), record("dist-fast", FAST, failure)))


def told(
    op: str = "rms_norm",
    found: Survey | None = None,
    environment: Environment | None = None,
    typed: tuple[str, ...] = (),
    *,
    compiling: bool = False,
) -> Forecast:
    """Return the forecast for an op."""
    preferences = Preferences(environment or Environment(), Settings())
    if typed:
        preferences.replace(Layer.COMMAND_LINE, {op: Wish(Layer.COMMAND_LINE, typed)})
    return forecast(op, found or survey(), preferences, compiling=compiling)


def order(forecasted: Forecast) -> list[tuple[str, str, bool]]:
    """Return provider, layer and whether it is accepted."""
    return [(each.provider, each.layer, each.accepted) for each in forecasted.explanation.verdicts]


def test_a_default_of_the_manifest_stands_before_native() -> None:
    """The provider's own wish is a layer, and its predicate has not been asked."""
    forecasted = told()
    assert order(forecasted) == [("fast", "provider default", True), ("native", "built-in", True)]
    assert forecasted.explanation.selected == "fast"
    assert forecasted.explanation.verdicts[0].reason == UNASKED
    assert forecasted.problem is None


def test_native_leads_when_inductor_compiles() -> None:
    """What stands behind native is not reached."""
    forecasted = told(compiling=True)
    assert order(forecasted)[0] == ("native", "platform default", True)
    assert forecasted.explanation.verdicts[1].reason == "not reached: native takes the call"


def test_batch_invariance_is_read_from_the_manifest() -> None:
    """Only what declares it is admitted."""
    forecasted = told(environment=Environment(batch_invariant=True))
    assert order(forecasted) == [("fast", "provider default", True), ("native", "built-in", False)]


def test_a_provider_that_failed_refuses_with_its_reason() -> None:
    """A default that cannot stand there is dropped, and the provider is shown last with the reason."""
    forecasted = told(found=survey(Failure("wrong platform", "It is for tea.", fault=False)))
    assert order(forecasted) == [("native", "built-in", True), ("fast", "", False)]
    assert forecasted.explanation.verdicts[1].reason == "It is for tea."


@pytest.mark.parametrize(
    ("op", "typed", "failure", "kind"),
    [
        ("rms_norm", ("fsat",), None, UnknownProvider),
        ("silu_and_mul", ("fast",), None, ProviderLacksOp),
        ("rms_norm", ("fast",), Failure("wrong platform", "It is for tea.", fault=False), UnusableProvider),
    ],
)
def test_a_named_provider_that_cannot_run_is_the_error_of_a_run(
    op: str, typed: tuple[str, ...], failure: Failure | None, kind: type[Exception]
) -> None:
    """The same classes as at run time, with the layer that named it."""
    problem = told(op, survey(failure), typed=typed).problem
    assert type(problem) is kind
    assert "--ir-op-priority" in str(problem)


def test_an_op_named_by_a_variable_that_nobody_declares_is_a_problem() -> None:
    """A run would stop at it whichever op is asked about."""
    problem = told(environment=Environment(op_priority="rms_nrom=native")).problem
    assert isinstance(problem, UnknownOp)
    assert "Did you mean 'rms_norm'?" in str(problem)


def test_an_unknown_op_is_an_error() -> None:
    """Files know the op or they do not."""
    with pytest.raises(UnknownOp, match="rms_norm"):
        told("rms_nrom")


def test_ops_and_who_declares_them() -> None:
    """The core's ops are native's; a distribution declares what it adds."""
    assert declared_ops(survey()) == {"rms_norm": "vllm-ir", "silu_and_mul": "vllm-ir", "quick_op": "dist-fast"}


def test_what_a_hook_decides_at_run_time_is_a_doubt() -> None:
    """Default orders and platforms that only loading can tell are said to be so."""
    text = FAST.replace("rank = 5", 'defaults-at-run-time = true\nplatform = "teapot"')
    found = Survey(survey().platform, (record("vllm-ir", CORE), record("dist-fast", text)))
    first, second = told(found=found).doubts
    assert first.startswith("dist-fast decides its default order at run time")
    assert "platform 'teapot'" in second


def on_device(name: str, *, strict: bool = False, tensors: str | None = "cuda") -> Forecast:
    """Return the forecast for an op on a machine with a device, where a user named a provider of the CPU first."""
    platform = Platform(name=name, device_type="cuda", devices=[Device("a device")])
    found = Survey(platform, (record("vllm-ir", CORE.replace("cuda", name)), record("dist-host", HOST)))
    preferences = Preferences(Environment(strict=strict, op_priority="rms_norm=host,native"), Settings())
    return forecast("rms_norm", found, preferences, tensors=tensors)


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_a_provider_of_the_cpu_hands_on_a_call_of_a_device(name: str) -> None:
    """It stands in the order, and is refused for where the tensors are, as dispatch refuses it."""
    forecasted = on_device(name)
    assert order(forecasted) == [("host", "VLLM_IR_OP_PRIORITY", False), ("native", "VLLM_IR_OP_PRIORITY", True)]
    assert forecasted.explanation.selected == "native"
    assert forecasted.explanation.verdicts[0].reason == (
        f"takes CPU tensors only, and those of a call on {name} are taken to be on its device"
    )
    assert forecasted.problem is None


def test_strict_mode_ends_the_call_that_it_hands_on() -> None:
    """Whom a user named has to take the call there."""
    told = on_device("cuda", strict=True).explanation
    assert told.selected is None
    assert told.verdicts[1].reason == "not reached: strict mode raises where host refuses"


def test_the_order_is_the_same_whatever_a_call_brings() -> None:
    """A lock keeps it, and a program may well call with tensors of the CPU."""
    assert on_device("cuda", tensors=None).explanation.selected == "host"
    assert on_device("cuda", tensors="cpu").explanation.selected == "host"


IN_PARTS = (
    CORE
    + """
[providers.unfused]
platforms = {cpu = {}, cuda = {}}
ops = {silu_and_mul = {}}
"""
)


def in_parts(op: str, *, batch_invariant: bool = False) -> Forecast:
    """Return the forecast for an op that a user wants to run unfused, where the core has one op with parts."""
    platform = Platform(name="cuda", device_type="cuda", devices=[Device("H200", (9, 0))])
    found = Survey(platform, (record("vllm-ir", IN_PARTS), record("dist-fast", FAST)))
    return told(op, found, Environment(op_priority=f"{op}=unfused", batch_invariant=batch_invariant))


def test_an_op_with_parts_runs_unfused() -> None:
    """It takes every call, like native, which stands by behind it."""
    forecasted = in_parts("silu_and_mul")
    assert order(forecasted) == [("unfused", "VLLM_IR_OP_PRIORITY", True), ("native", "built-in", True)]
    assert [each.reason for each in forecasted.explanation.verdicts] == [
        None,
        "not reached: unfused takes the call",
    ]
    assert (forecasted.doubts, forecasted.problem) == ((), None)


def test_an_op_without_parts_does_not() -> None:
    """The sentence is the one that a run stops with."""
    problem = in_parts("rms_norm").problem
    assert isinstance(problem, NoParts)
    assert str(problem) == (
        "VLLM_IR_OP_PRIORITY: op 'rms_norm' cannot run 'unfused': it has no parts (ops with parts: 'silu_and_mul')."
        " Take 'unfused' out of the list of 'rms_norm'."
    )


def test_what_only_loading_tells_of_parts() -> None:
    """Whether another distribution's op has any, and whether all of them are batch-invariant, is in no file."""
    forecasted = in_parts("quick_op")
    assert (forecasted.explanation.selected, forecasted.problem) == ("unfused", None)
    assert forecasted.doubts == ("unfused: only loading tells whether quick_op has parts.",)
    assert in_parts("silu_and_mul", batch_invariant=True).doubts == (
        "unfused: only loading tells whether each part has somebody who is batch-invariant.",
    )


@pytest.mark.parametrize("admitted", [False, True])
def test_parts_that_files_name_are_judged_as_in_a_run(admitted: bool) -> None:
    """Under batch invariance an op in parts is refused where a part has nobody, in the words that a run has for it."""
    text = CORE + '[providers.unfused]\nplatforms = {cuda = {}}\nops = {silu_and_mul = {parts = ["rms_norm"]}}\n'
    platform = Platform(name="cuda", device_type="cuda", devices=[Device("H200", (9, 0))])
    found = Survey(platform, (record("vllm-ir", text), *((record("dist-fast", FAST),) if admitted else ())))
    forecasted = told("silu_and_mul", found, Environment(op_priority="silu_and_mul=unfused", batch_invariant=True))
    assert forecasted.doubts == ()
    if admitted:
        assert (forecasted.explanation.selected, forecasted.problem) == ("unfused", None)
        return
    assert isinstance(forecasted.problem, UnusableProvider)
    assert forecasted.problem.reason == (
        "nothing may run its part rms_norm (native: it is not declared batch-invariant, which"
        " VLLM_BATCH_INVARIANT=1 asks for)"
    )
