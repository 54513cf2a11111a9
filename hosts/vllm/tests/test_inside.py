"""Stepping into vLLM: once, with its own behaviour kept."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from vllm_ir_host_vllm import inside


def test_the_group_of_ranks_is_none_where_a_worker_is_alone(fake_vllm: Any, monkeypatch: Any) -> None:
    """VLLM asserts that it is initialised, which a program need not have done."""
    assert fake_vllm is not None
    assert inside.rank_group() is None
    monkeypatch.setattr(sys.modules["vllm.distributed"], "get_world_group", lambda: None)
    assert inside.rank_group() is None
    alone = SimpleNamespace(world_size=1, cpu_group="nobody else")
    monkeypatch.setattr(sys.modules["vllm.distributed"], "get_world_group", lambda: alone)
    assert inside.rank_group() is None


def test_what_stands_around_a_method_runs_once_and_the_method_too(fake_vllm: Any) -> None:
    """A second step is none, also by another function."""
    seen: list[Any] = []
    assert inside.at_configuration(seen.append) is None
    assert inside.at_configuration(lambda config: seen.extend([config, "twice"])) is None
    fake_vllm.platform.check_and_update_config("a configuration")
    assert seen == fake_vllm.platform.checked == ["a configuration"]


def test_defaults_are_vllms_extended(fake_vllm: Any) -> None:
    """The function gets what vLLM would have taken."""
    assert inside.at_default_priorities(lambda config, found: (config.name, found.rms_norm)) is None
    config = fake_vllm.config()
    assert fake_vllm.platform.get_default_ir_op_priority(config) == ("model", ["native"])


def test_ops_are_none_where_vllm_has_none(fake_vllm: Any, monkeypatch: Any) -> None:
    """Its own implementations are imported first, so that their names are taken."""
    imported: list[str] = []
    monkeypatch.setattr(fake_vllm.platform, "import_ir_kernels", lambda: imported.append("kernels"))
    assert inside.ir_ops() is fake_vllm.ops
    assert imported == ["kernels"]
    monkeypatch.delattr(type(fake_vllm.platform), "import_ir_kernels")
    monkeypatch.delattr(fake_vllm.platform, "import_ir_kernels")
    kernels = ModuleType("vllm.kernels")
    monkeypatch.setitem(sys.modules, "vllm.kernels", kernels)
    assert inside.ir_ops() is fake_vllm.ops
    monkeypatch.delitem(sys.modules, "vllm.ir.op")
    assert inside.ir_ops() is None


def test_a_loader_with_a_way_of_its_own_is_seen_too(fake_vllm: Any) -> None:
    """VLLM has some, and another plugin may have registered one."""

    class Own(fake_vllm.loader):  # type: ignore[misc]  # of the vLLM in miniature
        """A loader that does not ask its base."""

        def load_model(self, vllm_config: Any) -> str:
            """Load otherwise."""
            return f"read {vllm_config.name}"

    class Inheriting(Own):
        """One that loads as its parent does."""

    seen: list[str] = []
    assert inside.before_loading(lambda config: seen.append(config.name)) is None
    assert Inheriting().load_model(fake_vllm.config()) == "read model"
    assert fake_vllm.loader().load_model(vllm_config=fake_vllm.config()) == "loaded model"
    assert seen == ["model", "model"]
