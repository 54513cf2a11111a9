"""The example provider in a fresh environment, built and installed as its user does: picked up on install, gone after.

torch and its like are lent to the environment by links, since a second copy costs minutes; nothing of ours is lent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Workspace

OURS = ("vllm_ir", "_vllm_ir", "__editable__")
SAME_BITS = """
import torch
from vllm_ir import ops
x, weight = torch.randn(33, 576).bfloat16(), torch.randn(576).bfloat16()
with ops.rms_norm.set_priority(["first_provider"]):
    chosen = ops.rms_norm.dispatch(x, weight, 1e-6).provider
    theirs = ops.rms_norm(x, weight, 1e-6)
print(chosen, torch.equal(theirs, ops.rms_norm(x, weight, 1e-6)))
"""


@dataclass(frozen=True, slots=True)
class Fresh:
    """An environment of its own."""

    folder: Path

    @property
    def python(self) -> str:
        """Return its interpreter."""
        return str(self.folder / "bin" / "python")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run its interpreter, in a folder without settings and without this process's path."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [self.python, *arguments],
            env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    def pip(self, *arguments: str) -> None:
        """Run this process's pip on it."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "--quiet", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def fresh(tmp_path: Path) -> Fresh:
    """Give an environment with what this one has, less everything of ours."""
    venv.create(tmp_path / "env", symlinks=True)
    lent = tmp_path / "lent"
    lent.mkdir()
    folders = dict.fromkeys([*sysconfig.get_paths().values(), *(path for path in sys.path if "site-packages" in path)])
    for folder in map(Path, folders):
        for entry in folder.iterdir() if folder.name == "site-packages" else ():
            if not entry.name.startswith(OURS) and not (lent / entry.name).exists():
                (lent / entry.name).symlink_to(entry)
    site = Path(subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip())  # fmt: skip
    (site / "lent.pth").write_text(f"{lent}\n", encoding="utf-8")
    return Fresh(tmp_path / "env")


def test_installing_switches_it_on_and_uninstalling_off(fresh: Fresh, workspace: Workspace) -> None:
    """No line of anybody's code changes between the three answers."""
    wanted = ["-m", "vllm_ir", "explain", "rms_norm", "--static", "--json", "--ir-op-priority.rms_norm=first_provider"]

    fresh.pip("install", "--no-deps", str(workspace.root / "core"))
    before = fresh.run(*wanted)
    assert before.returncode == 2, before.stderr
    assert "provider 'first_provider' for op 'rms_norm' is not installed (there are: 'native')" in before.stderr

    fresh.pip("install", "--no-deps", str(workspace.root / "docs" / "first_provider"))
    during = fresh.run(*wanted)
    assert during.returncode == 0, during.stderr
    assert json.loads(during.stdout)["selected"] == "first_provider"
    if find_spec("torch") is not None:
        loaded = json.loads(fresh.run("-m", "vllm_ir", "list", "--load", "--json").stdout)
        assert [(each["name"], each["state"]) for each in loaded["providers"]] == [
            ("native", "loaded"),
            ("first_provider", "loaded"),
        ]
        assert fresh.run("-c", SAME_BITS).stdout.split() == ["first_provider", "True"]

    fresh.pip("uninstall", "--yes", "vllm-ir-first-provider")
    assert fresh.run(*wanted).returncode == 2
