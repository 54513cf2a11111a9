"""`docs/configuration.md`: its examples are read as it says, and it names every variable and key there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from vllm_ir.environment import KNOWN, Environment
from vllm_ir.policy import Policy
from vllm_ir.settings import KEYS, REQUIREMENTS, Settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
SETTINGS, POLICY = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
HOSTS = {"VLLM_IR_HOST", "VLLM_IR_HOST_MODE"}
"""Variables of a host, which has a page of its own."""


def test_the_settings_of_the_page(tmp_path: Path) -> None:
    """The order is as it is written, a text with commas included."""
    (tmp_path / "vllm-ir.toml").write_text(SETTINGS, encoding="utf-8")
    read = Settings.read(tmp_path)
    assert read.op_priority == {"rms_norm": ("first_provider", "native"), "silu_and_mul": ("native",)}


@pytest.mark.parametrize(
    ("provider", "distribution", "op", "may"),
    [
        ("first_provider", "vllm-ir-first-provider", "rms_norm", True),
        ("first_provider", "vllm-ir-first-provider", "silu_and_mul", False),
        ("first_provider", "vllm-ir-first-provider", "rotary_embedding", False),
        ("cpu_c", "vllm-ir-provider-cpu-c", "rms_norm", True),
        ("cpu_c", "vllm-ir-provider-cpu-c", "gelu_and_mul", False),
        ("triton", "vllm-ir-provider-triton", "rms_norm", False),
        ("native", "vllm-ir", "rotary_embedding", True),
    ],
)
def test_the_policy_of_the_page(tmp_path: Path, provider: str, distribution: str, op: str, may: bool) -> None:
    """Who may run what, as its comments and the table below it say, in either kind of file."""
    for name, head in (("policy.toml", ""), ("pyproject.toml", "[tool.vllm-ir]\n")):
        file = tmp_path / name
        file.write_text(head + POLICY, encoding="utf-8")
        policy = Policy.read(Environment(policy=str(file)), Settings())
        assert (policy.refuse(provider, distribution, op) is None) == may
        assert (policy.strict, policy.batch_invariant) == (True, True)


def test_the_page_names_every_variable_and_key() -> None:
    """Nobody has to read sources to know what can be set."""
    rows = set(re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE))
    assert set(KNOWN) - HOSTS - rows == set()
    assert set(KEYS) - rows == {"op-priority"}
    assert all(f"`{name}`" in PAGE for name in REQUIREMENTS)
