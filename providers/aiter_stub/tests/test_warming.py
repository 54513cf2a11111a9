"""Warming up: AITER compiles at a first call, so one is made of each function that some list may reach."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops
from vllm_ir.environment import Environment
from vllm_ir.errors import ConfigurationError
from vllm_ir_provider_aiter import warming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.platforms import Platform

    from providers.aiter_stub.tests.conftest import Site

kit = pytest.importorskip("vllm_ir_testkit", reason="needs vllm-ir-testkit, which loads a provider as discovery does")


@pytest.fixture
def loaded(site: Site, machine: Callable[..., Platform]) -> Iterator[Any]:
    """Load the provider on an AMD machine."""
    assert site.package.is_dir()
    with kit.TestManager() as found:
        found.load("aiter", "vllm_ir_provider_aiter.hooks", machine())
        yield found


def called() -> list[tuple[str, str]]:
    """Return the functions of AITER that were called, each with the dtype of its tensors, and forget them."""
    made = importlib.import_module("aiter").CALLS
    floats = [next(arg.dtype for arg in args if torch.is_tensor(arg) and arg.is_floating_point()) for _, args in made]
    names = [(name, str(dtype).removeprefix("torch.")) for (name, _), dtype in zip(made, floats, strict=True)]
    made.clear()
    return names


def test_what_no_list_names_is_not_compiled(loaded: Any) -> None:
    """Each of AITER's modules takes minutes, so only those that may run are made."""
    assert loaded is not None
    warming.warm_up("cpu", [torch.bfloat16])
    assert called() == [("rmsnorm2d_fwd", "bfloat16"), ("rotary_embedding_fwd", "bfloat16")]


def test_what_a_user_names_is_compiled(loaded: Any) -> None:
    """An op that is in no default list, and is asked for."""
    assert loaded is not None
    ops.silu_and_mul.set_default(["aiter"])
    ops.fused_add_rms_norm.set_default(["aiter"])
    warming.warm_up(torch.device("cpu"), [torch.float16])
    wanted = {"rmsnorm2d_fwd", "rmsnorm2d_fwd_with_add", "silu_and_mul", "rotary_embedding_fwd"}
    assert set(called()) == {(name, "float16") for name in wanted}


def test_without_dtypes_both_are_compiled_and_others_never(loaded: Any) -> None:
    """A dtype that AITER does not take is nobody's wish."""
    assert loaded is not None
    warming.warm_up("cpu", [])
    assert {dtype for _, dtype in called()} == {"bfloat16", "float16"}
    warming.warm_up("cpu", [torch.float32])
    assert called() == []


def test_a_wrong_list_of_the_user_is_told_as_everywhere(site: Site, machine: Callable[..., Platform]) -> None:
    """Warming up reads the same priorities as a call."""
    assert site.package.is_dir()
    with kit.TestManager({"VLLM_IR_OP_PRIORITY": "rms_norm=aitre"}) as found:
        found.load("aiter", "vllm_ir_provider_aiter.hooks", machine())
        with pytest.raises(ConfigurationError, match="aitre"):
            warming.warm_up("cpu", [])
    assert Environment().op_priority is None
