"""The line about a start: who serves what in it, once."""

from __future__ import annotations

import logging
from typing import Any

from vllm_ir_host_vllm import logs
from vllm_ir_host_vllm.layers.replacing import Replacing
from vllm_ir_host_vllm.report import Started


def test_mode_and_providers_are_in_one_line() -> None:
    """VLLM's log has no names of loggers, so that a line about providers alone would be nobody's."""
    line = str(Started("0.34.0", "layers", {}, None, "providers: native serves 16 ops; digest 1234"))
    assert line == "vllm-ir in vLLM 0.34.0: layers mode; providers: native serves 16 ops; digest 1234"
    assert str(Started("0.34.0", "layers", {}, None, "")) == "vllm-ir in vLLM 0.34.0: layers mode"


def test_what_was_loaded_is_said_in_our_line_alone(caplog: Any) -> None:
    """And doubts about it are heard all the same."""
    caplog.set_level("DEBUG", "vllm_ir")
    logger = logging.getLogger("vllm_ir")
    with logs.without_summary():
        logger.info("providers: native")
        logger.warning("a doubt")
        logger.debug("a detail")
    logger.info("afterwards")
    assert caplog.messages == ["a doubt", "a detail", "afterwards"]


def test_each_layer_has_its_providers_beside_it() -> None:
    """Two of them where its ops have two."""
    done = Replacing({"RMSNorm": ("rms_norm", "fused_add_rms_norm"), "SiluAndMul": ("silu_and_mul",)}, [("A", "b")])
    lead = {"rms_norm": "fast", "fused_add_rms_norm": "native", "silu_and_mul": "fast"}.__getitem__
    assert done.told(lead) == ("vllm-ir, layers on ops: RMSNorm by fast and native, SiluAndMul by fast; left: A (b)")
    assert Replacing().told(lead) == "vllm-ir, layers on ops: none"
