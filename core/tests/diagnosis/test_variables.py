"""Variables that matter: ours first, and each with what is wrong with it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from vllm_ir.diagnosis import report, variables


def test_variables_are_told_with_what_is_wrong_with_them() -> None:
    """Ours first, with the nearest name for one that nobody knows; then those of others that decide what is found."""
    given = {"VLLM_IR_STRIKT": "1", "VLLM_IR_STRICT": "maybe", "HOME": "/x", "CUDA_VISIBLE_DEVICES": "0"}
    told = variables.read_variables({**given, "VLLM_BATCH_INVARIANT": "1"}, {"VLLM_IR_STRICT": "No."})
    assert [(each.name, each.problem) for each in told] == [
        ("VLLM_BATCH_INVARIANT", None),
        ("VLLM_IR_STRICT", "No."),
        ("VLLM_IR_STRIKT", "It means nothing to vllm-ir and is ignored. Did you mean 'VLLM_IR_STRICT'?"),
        ("CUDA_VISIBLE_DEVICES", None),
    ]


@pytest.mark.parametrize(
    ("plugins", "installed", "left_out"),
    [("other", True, True), ("", True, True), ("other,vllm_ir", True, False), ("other", False, False)],
)
def test_a_list_of_vllm_that_leaves_our_host_out_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, plugins: str, installed: bool, left_out: bool
) -> None:
    """VLLM goes by the list, and says nothing of what it does not load."""
    found = [SimpleNamespace(key="vllm-ir-host-vllm")] if installed else []
    monkeypatch.setattr(variables, "walk", lambda: iter(found))
    (told,) = variables.read_variables({"VLLM_PLUGINS": plugins}, {})
    wanted = "vllm-ir-host-vllm is installed, but vLLM does not load it: the list lacks 'vllm_ir'."
    assert told.problem == (wanted if left_out else None)


def test_a_path_that_a_template_left_empty_is_a_problem() -> None:
    """Kernels would be kept elsewhere than where somebody looks; an empty list of names says something."""
    told = variables.read_variables({"VLLM_IR_CACHE": "", "VLLM_IR_PROVIDERS": ""}, {})
    wanted = "It is set to nothing and counts as not set. Set it to a path, or not at all: unset VLLM_IR_CACHE."
    assert {each.name: each.problem for each in told} == {"VLLM_IR_CACHE": wanted, "VLLM_IR_PROVIDERS": None}


@pytest.mark.parametrize("name", ["VLLM_IR_CACHE", "VLLM_IR_LOCK", "VLLM_IR_POLICY"])
def test_no_empty_path_passes_in_silence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says it, the report has one finding about it."""
    monkeypatch.setenv(name, "")
    assert len([each for each in report.examine().findings if each.startswith(f"{name}=: ")]) == 1
