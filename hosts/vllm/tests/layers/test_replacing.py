"""Models get our layers wherever they ask for vLLM's, and nothing of vLLM's is lost by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_host_vllm.layers.kinds import KINDS, METHODS
from vllm_ir_host_vllm.layers.replacing import replace

if TYPE_CHECKING:
    from vllm_ir.runtime import Runtime

PLATFORMS = ("cuda", "hip", "xpu", "cpu", "oot")


@pytest.fixture(autouse=True)
def native_alone(state: Runtime) -> None:
    """Let nobody go before native."""
    assert state.registry.get("silu_and_mul").get_priority() == ["native"]


def all_of_them(fake_vllm: Any) -> Any:
    """Replace every layer."""
    return replace(fake_vllm.layers, lambda _kind: None)


def test_each_class_has_a_subclass_of_its_own(fake_vllm: Any) -> None:
    """VLLM goes by the exact name, so that a rotary embedding of Llama 3 would stay vLLM's otherwise."""
    done = all_of_them(fake_vllm)
    assert list(done.replaced) == [
        "RMSNorm",
        "GemmaRMSNorm",
        "SiluAndMul",
        "GeluAndMul",
        "RotaryEmbedding",
        "Llama3RotaryEmbedding",
    ]
    assert done.left == [("FourierRotaryEmbedding", "it has a forward_native of its own")]
    made = fake_vllm.rotary.Llama3RotaryEmbedding()
    assert type(made).__name__ == "VllmIrLlama3RotaryEmbedding"
    assert isinstance(made, fake_vllm.rotary.Llama3RotaryEmbedding)
    assert type(fake_vllm.rotary.FourierRotaryEmbedding()) is fake_vllm.rotary.FourierRotaryEmbedding


@pytest.mark.parametrize("platform", PLATFORMS)
def test_one_function_serves_every_platform(fake_vllm: Any, platform: str) -> None:
    """Whichever method vLLM chooses, enabled or not, the op runs: vLLM's own raise here."""
    all_of_them(fake_vllm)
    fake_vllm.platform.kind = platform
    x, residual = torch.randn(3, 8), torch.randn(3, 8)
    for custom_ops in (("all",), ("none",)):
        fake_vllm.custom_op.custom_ops = custom_ops
        norm = fake_vllm.layernorm.RMSNorm(8)
        assert norm.chosen == (f"forward_{platform}" if custom_ops == ("all",) else "forward_native")
        assert norm(x).shape == x.shape
        out, total = norm(x.clone(), residual.clone())
        assert torch.equal(total, x + residual)
        assert fake_vllm.layernorm.GemmaRMSNorm(8)(x).shape == out.shape
        assert fake_vllm.activation.SiluAndMul()(x).shape == (3, 4)
        assert fake_vllm.activation.GeluAndMul("tanh")(x).shape == (3, 4)
        query, key = fake_vllm.rotary.RotaryEmbedding()(torch.arange(3), x.clone(), residual.clone())
        assert query.shape == key.shape == x.shape


def test_the_name_by_which_custom_ops_know_a_layer_stays(fake_vllm: Any) -> None:
    """`register_oot` overwrites it with the name of the class, and "+rms_norm" would be ignored."""
    all_of_them(fake_vllm)
    names = {name: made.name for name, made in fake_vllm.layers.items()}
    assert names["RMSNorm"] == "rms_norm"
    assert names["Llama3RotaryEmbedding"] == "rotary_embedding"
    assert fake_vllm.layernorm.RMSNorm.name == "rms_norm"
    fake_vllm.custom_op.custom_ops = ("none", "+rms_norm")
    assert fake_vllm.layernorm.RMSNorm(8).chosen == "forward_cpu"


def test_the_registration_of_another_plugin_is_respected_and_reported(fake_vllm: Any) -> None:
    """Who came first stays, and its name is in the report."""

    @fake_vllm.layernorm.RMSNorm.register_oot
    class Theirs(fake_vllm.layernorm.RMSNorm):  # type: ignore[misc]  # of the vLLM in miniature
        """The layer of another plugin."""

    done = all_of_them(fake_vllm)
    assert fake_vllm.layers["RMSNorm"] is Theirs
    assert "RMSNorm" not in done.replaced
    (reason,) = [why for name, why in done.left if name == "RMSNorm"]
    assert "Theirs is registered for it already" in reason


def test_a_model_s_own_subclass_of_a_norm_is_left_and_named(fake_vllm: Any) -> None:
    """What it computes is not known."""

    class ModelsNorm(fake_vllm.layernorm.RMSNorm):  # type: ignore[misc]  # of the vLLM in miniature
        """A model's own."""

    done = all_of_them(fake_vllm)
    assert ("ModelsNorm", "it is a subclass of RMSNorm of its own") in done.left
    assert type(ModelsNorm(8)) is ModelsNorm


def test_a_second_time_changes_nothing(fake_vllm: Any) -> None:
    """Plugins are loaded in every process, and sometimes twice."""
    all_of_them(fake_vllm)
    before = {name: made.__name__ for name, made in fake_vllm.layers.items()}
    again = all_of_them(fake_vllm)
    assert list(again.replaced) == list(before)
    assert {name: made.__name__ for name, made in fake_vllm.layers.items()} == before
    assert type(fake_vllm.layernorm.RMSNorm(8)).__mro__[1] is fake_vllm.layernorm.RMSNorm


def test_another_model_in_the_process_gets_vllms_own_back(fake_vllm: Any) -> None:
    """What one model is to run on says nothing of the next; the layer of another plugin is not ours to take back."""

    @fake_vllm.activation.GeluAndMul.register_oot
    class Theirs(fake_vllm.activation.GeluAndMul):  # type: ignore[misc]  # of the vLLM in miniature
        """The layer of another plugin."""

    all_of_them(fake_vllm)
    done = replace(fake_vllm.layers, lambda _kind: "it compiles")
    assert done.replaced == {}
    assert fake_vllm.layers == {"GeluAndMul": Theirs}
    assert type(fake_vllm.layernorm.RMSNorm(8)) is fake_vllm.layernorm.RMSNorm
    assert "RMSNorm" in all_of_them(fake_vllm).replaced


def test_what_is_not_wanted_and_what_is_not_there_is_left(fake_vllm: Any) -> None:
    """An older vLLM lacks a class; no layer changes because of that."""
    del fake_vllm.layernorm.GemmaRMSNorm
    done = replace(fake_vllm.layers, lambda kind: "not today" if kind.name == "RMSNorm" else None)
    assert ("RMSNorm", "not today") in done.left
    assert ("GemmaRMSNorm", "this vLLM has no such class") in done.left
    assert "RMSNorm" not in fake_vllm.layers


def test_every_method_is_ours_and_nothing_else(fake_vllm: Any) -> None:
    """Constructors, parameters and buffers are vLLM's."""
    all_of_them(fake_vllm)
    for made in fake_vllm.layers.values():
        assert {name for name in vars(made) if not name.startswith("__")} == {*METHODS, "name"}


def test_every_kind_names_ops_that_there_are() -> None:
    """A misspelt op would never be replaced."""
    from vllm_ir import ops

    assert all(hasattr(ops, name) for kind in KINDS for name in kind.ops)
