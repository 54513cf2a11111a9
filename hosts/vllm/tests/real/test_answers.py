"""A real model answers as stock vLLM does, whoever runs its ops; where an answer differs, the gap is told.

Each way of running is compared with itself, because stock vLLM itself answers differently in eager and compiled:

- eager;
- traced: the graph of Dynamo, run op by op, as vLLM's own tests for CPUs do;
- compiled: the graph through Inductor, as vLLM does when it is asked for nothing. Inductor leaves out roundings inside
  what it fuses and sums in another order, and a kernel does neither, so that near ties may turn out otherwise;
- rounded: compiled, with eager's roundings kept by a setting of Inductor's, for stock and for us.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

NORMS = ("rms_norm", "fused_add_rms_norm")
LAYERS = (*NORMS, "silu_and_mul")
TURNING = (*LAYERS, "rotary_embedding")

HOW: dict[str, dict[str, Any]] = {
    "eager": {},
    "traced": {"compilation_config": {"mode": 2, "backend": "eager"}},
    "compiled": {},
    "rounded": {"compilation_config": {"inductor_compile_config": {"emulate_precision_casts": True}}},
}
"""What vLLM is asked for besides not to compile in the first."""

NEAR = 0.3
"""How far apart in log-probability two tokens may be for one to be taken for the other: two units of bfloat16 at 16."""


def asking(who: str, how: str, what: str = "", **more: Any) -> dict[str, Any]:
    """Return what to ask of whom, how the model is to run, and what this is to be called besides."""
    return {"name": f"{who} {how} {what}".rstrip(), "who": who, "eager": how == "eager", "more": {**HOW[how], **more}}


def stock(how: str) -> dict[str, Any]:
    """Return the run of vLLM with this host switched off."""
    return asking("stock", how)


def adopt(how: str, provider: str) -> dict[str, Any]:
    """Return the run with a provider named for vLLM's own norms, as a program names it."""
    return asking("adopt", how, provider, kernel_config={"ir_op_priority": {key: [provider] for key in NORMS}})


def layers(how: str, provider: str, ops: tuple[str, ...] = LAYERS) -> dict[str, Any]:
    """Return the run with a provider named for layers, and every IR op of vLLM raising."""
    lists = {"vllm_ir": {"ir_op_priority": {key: [provider] for key in ops}}}
    what = f"{provider} turning" if ops == TURNING else provider
    return {**asking("layers", how, what, additional_config=lists), "forbid_ir_ops": True}


def differences(first: Any, second: Any) -> list[tuple[int, int, float]]:
    """Return prompt, place and gap wherever two runs say something else for the first time."""
    found = []
    for prompt, (one, other) in enumerate(zip(first["answers"], second["answers"], strict=True)):
        pairs = enumerate(zip(one["tokens"], other["tokens"], strict=False))
        place = next((place for place, (left, right) in pairs if left != right), None)
        if place is not None:
            gap = min(run["pairs"][place][0] - run["pairs"][place][1] for run in (one, other))
            found.append((prompt, place, gap))
    return found


def ran(found: Any, ops: tuple[str, ...]) -> set[str]:
    """Return the providers that ran calls of all of these ops."""
    return set.union(*(set(found["counts"].get(op) or ["nobody"]) for op in ops))


def near(who: str, first: Any, second: Any, tell: Callable[[str], None]) -> None:
    """Tell how many answers are the same and how far apart the others are; fail where that is no near tie."""
    found = differences(first, second)
    gaps = ", ".join(f"{gap:.3f}" for _, _, gap in found) or "none"
    of = len(first["answers"])
    tell(f"{who}: {of - len(found)} of {of} answers as stock's; log-probability gaps at first differences: {gaps}")
    assert [each for each in found if each[2] > NEAR] == []


def without() -> dict[str, Any]:
    """Return the run of a vLLM that has no `vllm.ir`, with a provider named for layers."""
    lists = {"vllm_ir": {"ir_op_priority": {key: ["cpu_c"] for key in LAYERS}}}
    return asking("without", "eager", "cpu_c", additional_config=lists)


ROUNDS = 3

RACES = {
    "eager": (stock("eager"), adopt("eager", "cpu_c")),
    "compiled": (stock("compiled"), layers("compiled", "native", TURNING)),
}
"""Who is timed against stock vLLM."""

ASKED = (
    *(adopt("compiled", provider) for provider in ("native", "cpu_c")),
    adopt("eager", "native"),
    *(layers("eager", provider) for provider in ("native", "cpu_c")),
    layers("compiled", "cpu_c"),
    stock("compiled"),
    adopt("traced", "cpu_c"),
    stock("traced"),
    without(),
)
"""What is asked besides that, by two processes side by side."""


def raced(vllm: Any, *runs: Any) -> list[Any]:
    """Return what runs answered that have been asked in turns, so that what slows the machine slows each of them.

    Each gets the least time that it took, which is the processor's: on a machine with other work, time on the wall is
    that of others, and these engines have one thread.
    """
    vllm.all(*runs)
    for turn in range(1, ROUNDS):
        for run in runs:
            vllm.answers({**run, "name": f"{run['name']} again {turn}"})
    found = []
    for run in runs:
        turns = [vllm.answers({**run, "name": f"{run['name']} again {turn}"}) for turn in range(1, ROUNDS)]
        first = vllm.answers(run)
        least = {key: min(each[key] for each in (first, *turns)) for key in ("seconds", "processor")}
        found.append({**first, **least})
    return found


def ratios(vllm: Any, how: str, tell: Callable[[str], None]) -> float:
    """Tell by how much the second of a race was faster than the first, and return it, in time of the processor."""
    first, second = raced(vllm, *RACES[how])
    found: dict[str, float] = {key: first[key] / second[key] for key in ("processor", "seconds")}
    who = RACES[how][1]["name"]
    tell(f"{who}: {found['processor']:.2f} of stock's throughput by the processor, {found['seconds']:.2f} by the wall")
    return found["processor"]


@pytest.fixture(scope="module")
def asked(vllm: Any) -> Any:
    """Give who has the answers: what is timed was asked for in turns, all else by two processes side by side."""
    # Whoever does not answer here does not answer in the test that asks, which then fails alone.
    with contextlib.suppress(pytest.fail.Exception):
        raced(vllm, *RACES["eager"])
        vllm.all(*ASKED)
    return vllm


@pytest.mark.parametrize(("how", "provider"), [("eager", "native"), ("eager", "cpu_c"), ("traced", "cpu_c")])
def test_adopted_says_what_stock_says(asked: Any, how: str, provider: str) -> None:
    """Ten answers, to the token."""
    expected, found = asked.all(stock(how), adopt(how, provider))
    assert differences(expected, found) == []
    # vLLM's own native is none of ours, and calls inside a graph are not counted.
    assert ran(found, NORMS) == {provider if (how, provider) == ("eager", "cpu_c") else "nobody"}


@pytest.mark.parametrize(
    ("how", "provider"),
    [("eager", "native"), ("eager", "cpu_c"), pytest.param("traced", "cpu_c", marks=pytest.mark.full)],
)
def test_layers_say_what_stock_says(asked: Any, how: str, provider: str) -> None:
    """Norms and gates on ops of vllm-ir; the rotation, for which nobody wrote a list, is vLLM's."""
    expected, found = asked.all(stock(how), layers(how, provider))
    assert differences(expected, found) == []
    assert ran(found, LAYERS) == {provider}
    assert not found["counts"].get("rotary_embedding")


def test_a_vllm_without_its_ir_says_what_stock_says(asked: Any) -> None:
    """It has no `vllm.ir` to import; layers are replaced by themselves, and its own norms would raise."""
    expected, found = asked.all(stock("eager"), without())
    assert differences(expected, found) == []
    assert ran(found, LAYERS) == {"cpu_c"}
    assert "vllm-ir in vLLM 0.32.0: layers mode" in asked.said("without")


def test_adopted_native_compiled_says_what_stock_says(asked: Any) -> None:
    """Ten answers, to the token: nothing of vLLM's graph has changed."""
    expected, found = asked.all(stock("compiled"), adopt("compiled", "native"))
    assert differences(expected, found) == []


@pytest.mark.parametrize("run", [adopt("compiled", "cpu_c"), layers("compiled", "cpu_c")], ids=["adopt", "layers"])
def test_compiled_differs_on_near_ties_alone(asked: Any, run: Any, tell: Callable[[str], None]) -> None:
    """The gap in log-probability at each first difference is told."""
    expected, found = asked.all(stock("compiled"), run)
    near(run["name"], expected, found, tell)


def test_compiled_layers_say_what_stock_says_in_eager(asked: Any) -> None:
    """Ten answers, to the token: roundings that Inductor leaves out of stock's norms and gates are in these kernels."""
    expected, found = asked.all(stock("eager"), layers("compiled", "cpu_c"))
    assert differences(expected, found) == []


def test_compiled_layers_call_the_provider_that_was_named(asked: Any) -> None:
    """And no op of vLLM's IR, which raises in these runs."""
    assert ran(asked.answers(layers("compiled", "cpu_c")), LAYERS) == {"cpu_c"}


def test_throughput_of_the_provider_in_eager(asked: Any, tell: Callable[[str], None]) -> None:
    """The ratio is told; half the speed fails."""
    assert ratios(asked, "eager", tell) > 0.5


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "run"),
    [
        ("rounded", adopt("rounded", "cpu_c")),
        ("rounded", layers("rounded", "cpu_c")),
        ("compiled", layers("compiled", "native", TURNING)),
        ("compiled", layers("compiled", "cpu_c", TURNING)),
        ("eager", layers("eager", "cpu_c", TURNING)),
    ],
    ids=["adopt rounded", "layers rounded", "native turning", "cpu_c turning", "cpu_c turning eager"],
)
def test_differs_on_near_ties_alone(asked: Any, how: str, run: Any, tell: Callable[[str], None]) -> None:
    """Also with eager's roundings, and with a rotation, whose kernel of vLLM's own rounds otherwise in eager."""
    expected, found = asked.all(stock(how), run)
    near(run["name"], expected, found, tell)


@pytest.mark.full
def test_turning_layers_in_eager_say_the_same_whoever_runs_them(asked: Any) -> None:
    """A provider's rounding is native's."""
    found = [asked.answers(layers("eager", provider, TURNING)) for provider in ("cpu_c", "native")]
    assert differences(*found) == []


@pytest.mark.full
def test_throughput_of_compiled_layers(asked: Any, tell: Callable[[str], None]) -> None:
    """The same for layers on native, beside stock's own native code."""
    assert ratios(asked, "compiled", tell) > 0.5
