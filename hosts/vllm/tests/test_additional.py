"""Priorities that vLLM carries for us in its additional configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir import KernelConfig
from vllm_ir.errors import ProviderLacksOp, UnknownOp, UnknownProvider, UnusableProvider
from vllm_ir_host_vllm import additional
from vllm_ir_host_vllm.errors import MalformedAdditionalConfig

if TYPE_CHECKING:
    from vllm_ir.runtime import Runtime


def said(lists: Any) -> dict[str, Any]:
    """Return an additional configuration with these lists."""
    return {"vllm_ir": {"ir_op_priority": lists}}


@pytest.mark.parametrize("given", [None, {}, {"other": 1}, {"vllm_ir": None}, object()])
def test_what_says_nothing_of_us_changes_nothing(state: Runtime, given: Any) -> None:
    """VLLM takes objects of other plugins there, too."""
    KernelConfig({"rms_norm": ["fast"]}).apply()
    additional.Carried().take(given)
    assert state.registry.get("rms_norm").get_priority() == ["fast", "native"]


def test_what_says_nothing_takes_back_what_was_said(state: Runtime) -> None:
    """The next engine in a process has a configuration of its own."""
    carried = additional.Carried()
    carried.take(said({"rms_norm": ["fast"]}))
    carried.take(said({"rms_norm": ["fast"]}))
    assert state.registry.get("rms_norm").get_priority() == ["fast", "native"]
    carried.take({})
    assert state.registry.get("rms_norm").get_priority() == ["native"]


def test_lists_count_for_the_whole_process(state: Runtime) -> None:
    """A list or a text with commas, as everywhere."""
    additional.Carried().take(said({"rms_norm": ["fast", "native"], "fused_add_rms_norm": "fast"}))
    assert state.registry.get("rms_norm").get_priority() == ["fast", "native"]
    assert state.registry.get("fused_add_rms_norm").get_priority() == ["fast"]
    (entry, _) = (c.entry for c in state.candidates(state.registry.get("rms_norm")))
    assert entry.source == "KernelConfig"


@pytest.mark.parametrize(
    ("lists", "error"),
    [
        ({"rms_norm": ["fats"]}, UnknownProvider),
        ({"rms_norm": ["broken"]}, UnusableProvider),
        ({"silu_and_mul": ["fast"]}, ProviderLacksOp),
        ({"rms_nrom": ["fast"]}, UnknownOp),
    ],
)
def test_a_name_that_cannot_run_raises(state: Runtime, lists: Any, error: type[Exception]) -> None:
    """VLLM stops with the sentence."""
    with pytest.raises(error):
        additional.Carried().take(said(lists))
    assert state.registry.get("rms_norm").get_priority() == ["native"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"vllm_ir": ["rms_norm"]}, "wanted an object"),
        ({"vllm_ir": {"ir_op_priorty": {}}}, "there is no key 'ir_op_priorty' .*Did you mean 'ir_op_priority'"),
        (said(["rms_norm"]), "ir_op_priority is no object from ops to providers"),
        (said({"rms_norm": 3}), "wanted provider names"),
    ],
)
def test_what_cannot_be_read_says_how_to_write_it(given: Any, words: str) -> None:
    """The sentence ends with an example."""
    with pytest.raises(MalformedAdditionalConfig, match=words) as caught:
        additional.Carried().take(given)
    assert str(caught.value).startswith("--additional-config: vllm_ir is ")
    assert '\'{"vllm_ir"' in str(caught.value)
