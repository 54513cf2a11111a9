"""A real model answers as stock vLLM does, whoever runs its ops; where an answer differs, the gap is told.

Eager is compared with eager and compiled with compiled, because stock vLLM itself answers differently in the two.
Compiled has two forms: vLLM's own, in which Inductor leaves out roundings inside what it fuses, so that a kernel, which
keeps them, cannot say the same; and with eager's roundings kept (a setting of Inductor's, for stock and for us), in
which everything has to be the same.
"""

from __future__ import annotations

from typing import Any

import pytest

NORMS = ("rms_norm", "fused_add_rms_norm")
LAYERS = (*NORMS, "silu_and_mul")
TURNING = (*LAYERS, "rotary_embedding")

ROUNDED = {"inductor_compile_config": {"emulate_precision_casts": True}}

NEAR = 0.3
"""How far apart in log-probability two tokens may be for one to be taken for the other: two units of bfloat16 at 16."""


def run(who: str, how: str, **more: Any) -> dict[str, Any]:
    """Return what to ask of whom: an engine that is `eager`, `compiled`, or compiled with eager's roundings."""
    lists = str(more).translate({ord(each): "_" for each in "{}[]()':, "})
    if how == "rounded":
        more["compilation_config"] = ROUNDED
    return {"name": f"{who} {how} {lists}", "who": who, "eager": how == "eager", "more": more}


def stock(how: str) -> dict[str, Any]:
    """Return the run of vLLM with this host switched off."""
    return run("stock", how)


def adopt(how: str, provider: str) -> dict[str, Any]:
    """Return the run with a provider named for vLLM's own norms, as a program names it."""
    return run("adopt", how, kernel_config={"ir_op_priority": {key: [provider] for key in NORMS}})


def layers(how: str, provider: str, ops: tuple[str, ...] = LAYERS) -> dict[str, Any]:
    """Return the run with a provider named for layers, and every IR op of vLLM raising."""
    lists = {"vllm_ir": {"ir_op_priority": {key: [provider] for key in ops}}}
    return {**run("layers", how, additional_config=lists), "forbid_ir_ops": True}


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


def tell(capfd: Any, request: pytest.FixtureRequest, text: str) -> None:
    """Put a line into the output of the run."""
    with capfd.disabled():
        request.config.get_terminal_writer().line(f" {text}")


@pytest.fixture(scope="session")
def rounded(vllm: Any) -> Any:
    """Give what gives the answers of compiled runs; all are asked for at once, in two processes side by side."""
    runs = {"stock": stock("rounded")}
    runs |= {f"adopt {provider}": adopt("rounded", provider) for provider in ("native", "cpu_c")}
    runs["layers cpu_c"] = layers("rounded", "cpu_c", TURNING)
    return dict(zip(runs, vllm.all(*runs.values()), strict=True))


@pytest.mark.parametrize("provider", ["native", "cpu_c"])
def test_adopted_in_eager_says_what_stock_says(vllm: Any, provider: str) -> None:
    """Ten answers, to the token."""
    found = vllm.answers(adopt("eager", provider))
    assert differences(vllm.answers(stock("eager")), found) == []
    # vLLM's own native is none of ours, and is not counted.
    assert ran(found, NORMS) == {"nobody" if provider == "native" else provider}


@pytest.mark.parametrize("provider", ["native", "cpu_c"])
def test_layers_in_eager_say_what_stock_says(vllm: Any, provider: str) -> None:
    """Norms and gates on ops of vllm-ir; the rotation, for which nobody wrote a list, is vLLM's."""
    found = vllm.answers(layers("eager", provider))
    assert differences(vllm.answers(stock("eager")), found) == []
    assert ran(found, LAYERS) == {provider}
    assert not found["counts"].get("rotary_embedding")


def test_a_vllm_without_its_ir_says_what_stock_says(vllm: Any) -> None:
    """It has no `vllm.ir` to import; layers are replaced by themselves, and its own norms would raise."""
    lists = {"vllm_ir": {"ir_op_priority": {key: ["cpu_c"] for key in LAYERS}}}
    found = vllm.answers(run("without", "eager", additional_config=lists))
    assert differences(vllm.answers(stock("eager")), found) == []
    assert ran(found, LAYERS) == {"cpu_c"}
    assert "vllm-ir in vLLM 0.32.0: layers mode" in vllm.said("without")


@pytest.mark.parametrize("who", ["adopt native", "adopt cpu_c", "layers cpu_c"])
def test_compiled_with_eagers_roundings_says_what_stock_says(rounded: Any, who: str) -> None:
    """Ten answers, to the token, of stock vLLM compiled by the same settings."""
    assert differences(rounded["stock"], rounded[who]) == []


def test_compiled_layers_call_the_provider_that_was_named(rounded: Any) -> None:
    """And no op of vLLM's IR, which raises in these runs."""
    assert ran(rounded["layers cpu_c"], TURNING) == {"cpu_c"}


def test_throughput_of_the_provider_in_eager(vllm: Any, capfd: Any, request: pytest.FixtureRequest) -> None:
    """The ratio is told; only a provider that halves the speed fails here, since other machines differ."""
    ratio = vllm.answers(stock("eager"))["seconds"] / vllm.answers(adopt("eager", "cpu_c"))["seconds"]
    tell(capfd, request, f"throughput of adopt cpu_c to stock, eager: {ratio:.2f}")
    assert ratio > 0.5


@pytest.mark.full
def test_adopted_native_compiled_says_what_stock_says(vllm: Any) -> None:
    """Nothing of vLLM's graph has changed."""
    assert differences(vllm.answers(stock("compiled")), vllm.answers(adopt("compiled", "native"))) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "asked"),
    [
        ("compiled", adopt("compiled", "cpu_c")),
        ("compiled", layers("compiled", "cpu_c", TURNING)),
        ("compiled", layers("compiled", "native", TURNING)),
        ("eager", layers("eager", "cpu_c", TURNING)),
    ],
    ids=["adopt", "layers", "layers native", "layers turning"],
)
def test_differs_on_near_ties_alone(
    vllm: Any, how: str, asked: Any, capfd: Any, request: pytest.FixtureRequest
) -> None:
    """Inductor leaves out roundings and a kernel keeps them; vLLM's own rotary kernel rounds otherwise in eager."""
    found = differences(vllm.answers(stock(how)), vllm.answers(asked))
    gaps = ", ".join(f"{gap:.3f}" for _, _, gap in found)
    tell(capfd, request, f"{10 - len(found)} of 10 as stock; gaps at first differences: {gaps or 'none'}")
    assert [each for each in found if each[2] > NEAR] == []


@pytest.mark.full
def test_turning_layers_in_eager_say_the_same_whoever_runs_them(vllm: Any) -> None:
    """A provider's rounding is native's."""
    found = [vllm.answers(layers("eager", provider, TURNING)) for provider in ("cpu_c", "native")]
    assert differences(*found) == []


@pytest.mark.full
def test_throughput_of_compiled_layers(vllm: Any, capfd: Any, request: pytest.FixtureRequest) -> None:
    """The same for layers on native, beside stock's own native code."""
    ratio = vllm.answers(stock("compiled"))["seconds"] / vllm.answers(layers("compiled", "native", TURNING))["seconds"]
    tell(capfd, request, f"throughput of layers native to stock, compiled: {ratio:.2f}")
    assert ratio > 0.2
