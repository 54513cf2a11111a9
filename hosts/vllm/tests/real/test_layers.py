"""vLLM's own classes, each platform faked: ours stand in for them, compute as their native code, and keep the names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def found(vllm: Any) -> Any:
    """Give what came of replacing all classes."""
    script = str(Path(__file__).with_name("layers.py"))
    done = vllm.python(script, VLLM_IR_OP_PRIORITY="", VLLM_IR_PROVIDERS="")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_platform_computes_what_vllms_native_code_does(found: Any) -> None:
    """To the bit in bfloat16, with the method of that platform."""
    assert found["differ"] == []
    assert set(found["methods"].values()) == {"rms_norm.<locals>.forward"}


def test_models_get_our_classes(found: Any) -> None:
    """By the exact name that they ask for."""
    assert all(made == f"VllmIr{name}" for name, made in found["classes"].items())


def test_subclasses_that_differ_in_their_angles_alone_are_replaced(found: Any) -> None:
    """And no other."""
    assert {
        "RotaryEmbedding",
        "Llama3RotaryEmbedding",
        "YaRNScalingRotaryEmbedding",
        "LinearScalingRotaryEmbedding",
        "NTKScalingRotaryEmbedding",
        "DynamicNTKScalingRotaryEmbedding",
    } <= set(found["replaced"])
    assert found["left"]["FourierRotaryEmbedding"] == "it has a forward_native of its own"


def test_custom_ops_find_them_by_vllms_names(found: Any) -> None:
    """`custom_ops=["+rms_norm"]` would be ignored otherwise."""
    assert found["names"]["RMSNorm"] == "rms_norm"
    assert found["names"]["GemmaRMSNorm"] == "gemma_rms_norm"
    assert found["names"]["SiluAndMul"] == "silu_and_mul"
    assert found["names"]["Llama3RotaryEmbedding"] == "rotary_embedding"
