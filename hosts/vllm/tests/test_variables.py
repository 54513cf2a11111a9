"""The two variables of this host, and what vLLM is told of ours."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_ir.environment import KNOWN
from vllm_ir.errors import MalformedVariable
from vllm_ir_host_vllm import variables


@pytest.mark.parametrize(("value", "on"), [(None, True), ("", True), ("1", True), ("off", False), ("0", False)])
def test_the_switch(value: str | None, on: bool) -> None:
    """On, unless somebody says otherwise."""
    assert variables.switched_on({} if value is None else {"VLLM_IR_HOST": value}) is on


@pytest.mark.parametrize(("value", "mode"), [(None, None), ("auto", None), ("Layers", "layers"), ("adopt", "adopt")])
def test_the_mode(value: str | None, mode: str | None) -> None:
    """Left to the vLLM at hand, unless somebody says otherwise."""
    assert variables.wanted_mode({} if value is None else {"VLLM_IR_HOST_MODE": value}) == mode


def test_what_cannot_be_read_raises() -> None:
    """A misspelt switch must not mean on, nor a misspelt mode any."""
    with pytest.raises(MalformedVariable, match="VLLM_IR_HOST='of' cannot be read, wanted 1 or 0"):
        variables.switched_on({"VLLM_IR_HOST": "of"})
    with pytest.raises(MalformedVariable, match="VLLM_IR_HOST_MODE='layer' cannot be read, wanted adopt, layers or"):
        variables.wanted_mode({"VLLM_IR_HOST_MODE": "layer"})


def test_every_variable_of_ours_is_one_that_vllm_knows(monkeypatch: Any) -> None:
    """VLLM refuses to start with others if it is asked to be strict; what it has itself stays."""
    known: dict[str, Any] = {"VLLM_IR_LOG": len}
    variables.enter(known)
    assert set(known) == set(KNOWN)
    assert known["VLLM_IR_LOG"] is len
    assert known["VLLM_IR_STRICT"]() is None
    monkeypatch.setenv("VLLM_IR_STRICT", "1")
    assert known["VLLM_IR_STRICT"]() == "1"
