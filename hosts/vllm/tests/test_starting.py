"""A start, from the variables to the line in the log, in a vLLM in miniature."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import (
    Unsupported,
    ops,  # noqa: F401 - the core's ops are there before the state is taken apart
)
from vllm_ir.errors import ConfigurationError, MalformedVariable, UnknownProvider, UnusableProvider
from vllm_ir.isolation import isolated
from vllm_ir_host_vllm import plugin, starting
from vllm_ir_host_vllm.errors import MalformedAdditionalConfig, NothingToAdopt, UnknownVllmProvider

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_ir.runtime import Runtime


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each test start anew, and load no provider that is installed here."""
    starting.start.cache_clear()
    monkeypatch.setattr("vllm_ir.load_providers", lambda: None)
    monkeypatch.setattr("vllm_ir.warm_up", lambda: None)
    yield
    starting.start.cache_clear()


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for layer mode."""
    monkeypatch.setenv("VLLM_IR_HOST_MODE", "layers")


def with_defaults(state: Runtime, *names: str) -> Any:
    """Return what discovery found, with `fast` wanted by default for ops, in eager and compiled."""
    wanted = dict.fromkeys(names, ("fast",))
    return replace(state.landscape, provider_defaults={False: wanted, True: wanted})


def configured(fake_vllm: Any, config: Any) -> Any:
    """Let vLLM complete a configuration: its platform's defaults behind the user's, then the platform's check."""
    lists = config.kernel_config.ir_op_priority
    for name, given in asdict(fake_vllm.platform.get_default_ir_op_priority(config)).items():
        mine = getattr(lists, name)
        mine.extend(each for each in given if each not in mine)
    fake_vllm.platform.check_and_update_config(config)
    return lists


def loaded(fake_vllm: Any, config: Any = None) -> dict[str, Any]:
    """Load a model as a worker does, and return the layers that are replaced for it."""
    assert fake_vllm.loader().load_model(config or fake_vllm.config()) == "loaded model"
    found: dict[str, Any] = fake_vllm.layers
    return found


def test_it_adopts_where_vllm_has_ops_and_replaces_the_layers_of_the_others(
    fake_vllm: Any, state: Runtime, caplog: Any
) -> None:
    """Norms are vLLM's own ops; a gate that somebody runs by default is reached through a layer."""
    gate = state.registry.get("silu_and_mul")
    gate.register_impl("fast")(gate.declaration.native)
    state.adopt(with_defaults(state, "silu_and_mul"))
    caplog.set_level("INFO", "vllm_ir")
    plugin.register()
    assert "fast" in fake_vllm.ops["rms_norm"].impls
    assert str(starting.start()) == (
        "vllm-ir in vLLM 0.32.0: adopt mode; added to vLLM's ops: rms_norm by fast, fused_add_rms_norm by fast; not"
        " added: broken to rms_norm (it needs a moon)"
    )
    assert list(loaded(fake_vllm)) == ["SiluAndMul"]
    said, layers = (line for line in caplog.messages if line.startswith("vllm-ir"))
    assert said == str(starting.start())
    assert layers == (
        "vllm-ir, layers on ops: SiluAndMul by fast; left: RMSNorm (vLLM's own op serves it), GemmaRMSNorm (vLLM's own"
        " op serves it), GeluAndMul (native leads for gelu_and_mul), RotaryEmbedding (vLLM's kernel rounds otherwise"
        " than its own native code; a list for rotary_embedding replaces it)"
    )


def test_nothing_is_replaced_by_default_where_inductor_compiles(fake_vllm: Any, state: Runtime, caplog: Any) -> None:
    """Native leads there, and vLLM's own native code fuses as vLLM's does."""
    gate = state.registry.get("silu_and_mul")
    gate.register_impl("fast")(gate.declaration.native)
    state.adopt(with_defaults(state, "silu_and_mul"))
    caplog.set_level("INFO", "vllm_ir")
    plugin.register()
    assert loaded(fake_vllm, fake_vllm.config(compiling=True)) == {}
    assert "SiluAndMul (native leads for silu_and_mul when Inductor compiles)" in caplog.text


@pytest.mark.usefixtures("layers")
def test_asked_for_layers_it_replaces_each_and_registers_nothing(fake_vllm: Any, state: Runtime) -> None:
    """Also those that only native can run, and where Inductor compiles; the rotation changes answers, and waits."""
    plugin.register()
    wanted = ["RMSNorm", "GemmaRMSNorm", "SiluAndMul", "GeluAndMul"]
    assert list(loaded(fake_vllm, fake_vllm.config(compiling=True))) == wanted
    listing = fake_vllm.config({"vllm_ir": {"ir_op_priority": {"rotary_embedding": ["native"]}}}, compiling=True)
    assert list(loaded(fake_vllm, listing)) == [*wanted, "RotaryEmbedding", "Llama3RotaryEmbedding"]
    assert list(fake_vllm.ops["rms_norm"].impls) == ["native"]
    assert str(starting.start()) == "vllm-ir in vLLM 0.32.0: layers mode"
    assert state.registry.get("rms_norm").get_priority() == ["native"]


def test_a_vllm_without_ops_gets_layers_where_somebody_runs_them(
    fake_vllm: Any, state: Runtime, monkeypatch: Any
) -> None:
    """An installed host without a provider must not take vLLM's kernels away."""
    monkeypatch.delitem(sys.modules, "vllm.ir.op")
    monkeypatch.delattr(type(fake_vllm.platform), "get_default_ir_op_priority")
    plugin.register()
    assert starting.start().adoption is None
    assert loaded(fake_vllm) == {}
    state.adopt(with_defaults(state, "rms_norm"))
    assert set(loaded(fake_vllm)) == {"RMSNorm", "GemmaRMSNorm"}


def test_to_adopt_from_nothing_raises(fake_vllm: Any, monkeypatch: Any) -> None:
    """A mode that was asked for and cannot be is an error."""
    monkeypatch.delitem(sys.modules, "vllm.ir.op")
    monkeypatch.setenv("VLLM_IR_HOST_MODE", "adopt")
    with pytest.raises(NothingToAdopt):
        plugin.register()
    assert fake_vllm.layers == {}


@pytest.mark.usefixtures("state")
def test_switched_off_only_the_variables_are_known(fake_vllm: Any, monkeypatch: Any) -> None:
    """A strict vLLM would refuse the switch itself otherwise."""
    monkeypatch.setenv("VLLM_IR_HOST", "0")
    plugin.register()
    assert fake_vllm.layers == {}
    assert list(fake_vllm.ops["rms_norm"].impls) == ["native"]
    assert "VLLM_IR_HOST" in fake_vllm.environment_variables
    monkeypatch.setenv("VLLM_IR_HOST", "perhaps")
    with pytest.raises(MalformedVariable):
        plugin.register()


@pytest.mark.usefixtures("state", "layers")
def test_a_second_time_changes_nothing(fake_vllm: Any) -> None:
    """VLLM calls it once a process, other programs may do so again."""
    plugin.register()
    before, asked = list(loaded(fake_vllm)), fake_vllm.platform.get_default_ir_op_priority
    plugin.register()
    assert list(loaded(fake_vllm)) == before
    assert fake_vllm.platform.get_default_ir_op_priority is asked
    starting.start.cache_clear()
    plugin.register()
    assert fake_vllm.platform.get_default_ir_op_priority is asked


@pytest.mark.parametrize(("text", "error"), [("rms_norm=fats", UnknownProvider), ("rms_norm=broken", UnusableProvider)])
def test_a_variable_that_names_what_cannot_run_stops_at_once(
    fake_vllm: Any, text: str, error: type[ConfigurationError]
) -> None:
    """Before vLLM loads anything."""
    with isolated({"VLLM_IR_OP_PRIORITY": text}) as fresh_state:
        norm = fresh_state.registry.get("rms_norm")
        norm.register_impl("broken", supported=Unsupported("it needs a moon"))(norm.declaration.native)
        with pytest.raises(error):
            plugin.register()
    assert fake_vllm.layers == {}


def test_the_user_of_vllm_goes_before_our_defaults(fake_vllm: Any, state: Runtime) -> None:
    """What is written in --ir-op-priority, then ours, then vLLM's."""
    state.adopt(with_defaults(state, "rms_norm", "fused_add_rms_norm"))
    plugin.register()
    lists = configured(fake_vllm, fake_vllm.config(fused_add_rms_norm=["native"]))
    assert asdict(lists) == {
        "rms_norm": ["fast", "native"],
        "fused_add_rms_norm": ["native", "fast"],
        "gelu_and_mul_sparse": ["native"],
    }
    compiled = configured(fake_vllm, fake_vllm.config(compiling=True))
    assert compiled.rms_norm == ["native"]


@pytest.mark.usefixtures("state")
def test_a_list_of_vllm_with_a_name_that_is_not_there_stops_it(fake_vllm: Any) -> None:
    """With a sentence in place of a KeyError."""
    plugin.register()
    with pytest.raises(UnknownVllmProvider, match="'fats' is not installed"):
        configured(fake_vllm, fake_vllm.config(rms_norm=["fats"]))


def test_the_additional_configuration_counts_in_both_modes(fake_vllm: Any, state: Runtime) -> None:
    """Adopted ops get it as a default of vLLM's, our own ops as their priority."""
    plugin.register()
    lists = configured(fake_vllm, fake_vllm.config({"vllm_ir": {"ir_op_priority": {"rms_norm": ["fast"]}}}))
    assert lists.rms_norm == ["fast", "native"]
    assert state.registry.get("rms_norm").get_priority() == ["fast", "native"]
    with pytest.raises(MalformedAdditionalConfig):
        fake_vllm.platform.check_and_update_config(fake_vllm.config({"vllm_ir": 3}))


@pytest.mark.usefixtures("layers")
def test_a_worker_takes_the_configuration_agrees_and_warms_up_before_it_loads(
    fake_vllm: Any, state: Runtime, monkeypatch: Any
) -> None:
    """It gets the configuration from another process, where it was looked at."""
    done: list[Any] = []
    monkeypatch.setattr("vllm_ir.warm_up", lambda: done.append("warm"))
    monkeypatch.setattr("vllm_ir.verify_agreement", done.append)
    plugin.register()
    config = fake_vllm.config({"vllm_ir": {"ir_op_priority": {"rms_norm": ["fast"]}}})
    assert fake_vllm.loader().load_model(config) == "loaded model"
    assert done == ["warm"]
    assert state.registry.get("rms_norm").get_priority() == ["fast", "native"]
    two = SimpleNamespace(world_size=2, cpu_group="all ranks")
    monkeypatch.setattr(sys.modules["vllm.distributed"], "get_world_group", lambda: two)
    assert fake_vllm.loader().load_model(vllm_config=config) == "loaded model"
    assert done == ["warm", "all ranks", "warm"]


@pytest.mark.usefixtures("layers")
def test_a_worker_shows_its_counts_where_calls_are_counted(fake_vllm: Any, state: Runtime, monkeypatch: Any) -> None:
    """Whoever counts nothing has no metrics of zeros."""
    shown: list[str] = []
    monkeypatch.setattr("vllm_ir_host_vllm.exporting.export", lambda: shown.append("shown"))
    plugin.register()
    loaded(fake_vllm)
    assert shown == []
    state.count_calls()
    loaded(fake_vllm)
    assert shown == ["shown"]


@pytest.mark.usefixtures("state", "layers")
def test_the_line_waits_until_vllm_has_a_log(fake_vllm: Any) -> None:
    """In the process that a user starts, vLLM configures logging after it has loaded plugins."""
    ours, theirs, lines = logging.getLogger("vllm_ir"), logging.getLogger("vllm"), list[str]()

    class Keep(logging.Handler):
        """Keep what is logged."""

        def emit(self, record: logging.LogRecord) -> None:
            """Keep a line."""
            lines.append(record.getMessage())

    kept = (ours.handlers[:], ours.level, ours.propagate, theirs.handlers[:], theirs.level)
    ours.handlers, theirs.handlers, ours.propagate = [], [], False
    try:
        plugin.register()
        assert lines == []
        theirs.handlers = [Keep()]
        theirs.setLevel("INFO")
        ours.setLevel("NOTSET")
        fake_vllm.platform.check_and_update_config(fake_vllm.config())
        fake_vllm.loader().load_model(fake_vllm.config())
    finally:
        ours.handlers, _, ours.propagate, theirs.handlers, _ = kept
        ours.setLevel(kept[1])
        theirs.setLevel(kept[4])
    assert lines[0] == "vllm-ir in vLLM 0.32.0: layers mode"
    assert [line.split(":")[0] for line in lines[1:]] == ["vllm-ir, layers on ops"]


@pytest.mark.usefixtures("state", "layers")
def test_a_place_that_another_vllm_has_moved_is_named(fake_vllm: Any, monkeypatch: Any, caplog: Any) -> None:
    """Everything else still happens."""
    monkeypatch.delattr(type(fake_vllm.platform), "check_and_update_config")
    caplog.set_level("WARNING", "vllm_ir")
    plugin.register()
    assert "vLLM 0.32.0 has no check_and_update_config" in caplog.text
    assert "RMSNorm" in loaded(fake_vllm)
    assert fake_vllm.layernorm.RMSNorm(8)(torch.ones(1, 8)).shape == (1, 8)


def test_a_list_replaces_a_layer_whose_answers_it_may_change(fake_vllm: Any, state: Runtime) -> None:
    """Nobody's answers change because a wheel was installed; a list in the configuration of vLLM is in time, too."""
    rotary = state.registry.get("rotary_embedding")
    rotary.register_impl("fast")(rotary.declaration.native)
    state.adopt(with_defaults(state, "rotary_embedding"))
    plugin.register()
    assert loaded(fake_vllm) == {}
    listing = fake_vllm.config({"vllm_ir": {"ir_op_priority": {"rotary_embedding": ["fast"]}}}, compiling=True)
    assert list(loaded(fake_vllm, listing)) == ["RotaryEmbedding", "Llama3RotaryEmbedding"]


@pytest.mark.usefixtures("layers", "state")
def test_layers_are_replaced_at_once_where_loading_cannot_be_seen(fake_vllm: Any, monkeypatch: Any) -> None:
    """A vLLM that has moved its loader still gets its layers, and it is said what else does not happen."""
    monkeypatch.delattr(fake_vllm.loader, "load_model")
    plugin.register()
    assert "RMSNorm" in fake_vllm.layers
