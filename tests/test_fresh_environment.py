"""The example provider in a fresh environment, built and installed as its user does: picked up on install, gone after.

torch and its like are lent to the environment by links, since a second copy costs minutes; nothing of ours is lent.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Fresh, Workspace

SAME_BITS = """
import torch
from vllm_ir import ops
x, weight = torch.randn(33, 576).bfloat16(), torch.randn(576).bfloat16()
with ops.rms_norm.set_priority(["first_provider"]):
    chosen = ops.rms_norm.dispatch(x, weight, 1e-6).provider
    theirs = ops.rms_norm(x, weight, 1e-6)
print(chosen, torch.equal(theirs, ops.rms_norm(x, weight, 1e-6)))
"""


def test_installing_switches_it_on_and_uninstalling_off(
    make_fresh: Callable[[Path], Fresh], tmp_path: Path, workspace: Workspace
) -> None:
    """No line of anybody's code changes between the three answers."""
    fresh = make_fresh(tmp_path / "env")
    wanted = ["-m", "vllm_ir", "explain", "rms_norm", "--static", "--json", "--ir-op-priority.rms_norm=first_provider"]

    fresh.pip("install", "--no-deps", str(workspace.root / "core"))
    before = fresh.run(*wanted)
    assert before.returncode == 2, before.stderr
    told = "provider 'first_provider' for op 'rms_norm' is not installed (there are: 'native')"
    assert told in before.stderr

    fresh.pip("install", "--no-deps", str(workspace.root / "docs" / "first_provider"))
    during = fresh.run(*wanted)
    assert during.returncode == 0, during.stderr
    assert json.loads(during.stdout)["selected"] == "first_provider"
    if find_spec("torch") is not None:
        loaded = json.loads(fresh.run("-m", "vllm_ir", "list", "--load", "--json").stdout)
        assert [(each["name"], each["state"]) for each in loaded["providers"]] == [
            ("native", "loaded"),
            ("unfused", "loaded"),
            ("first_provider", "loaded"),
        ]
        assert fresh.run("-c", SAME_BITS).stdout.split() == ["first_provider", "True"]

    fresh.pip("uninstall", "--yes", "vllm-ir-first-provider")
    assert fresh.run(*wanted).returncode == 2
