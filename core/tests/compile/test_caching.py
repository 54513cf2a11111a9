"""Torch's caches: a second process takes everything from them and still tells who runs; each part of the key counts.

Programs run in processes of their own, with a cache of their own, and with a distribution made by hand as the only one
beside native.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

NEEDS_TORCH = True

DISTRIBUTION = "kernels-by-hand"

MANIFEST = """
schema = 1
provider-api = "1"
summary = "Made by hand."
adds-passes = ["Nothing"]
[providers.by_hand.platforms]
cpu = {}
[providers.by_hand.ops]
rms_norm = {}
"""

HOOKS = """
from vllm_ir import hookimpl

@hookimpl
def vllm_ir_implementations(platform):
    from kernels_by_hand import kernels
    return [kernels.rms_norm]

@hookimpl
def vllm_ir_passes(platform):
    from kernels_by_hand.passes import Nothing
    return [Nothing()]
"""

KERNELS = """
from torch import Tensor
from vllm_ir import implements

@implements("rms_norm", provider="by_hand")
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return x * 2
"""

PASSES = """
from vllm_ir.compile.passes import GraphPass

class Nothing(GraphPass):
    def apply(self, graph):
        return 0
"""

PROGRAM = """
import copy, json, sys
from dataclasses import replace
import torch
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint
from vllm_ir import fingerprint, ops, report, runtime
from vllm_ir.compile.backend import backend
from vllm_ir.compile.passes import GraphPass
from vllm_ir.compile.plan import Plan

class Users(GraphPass):
    def __init__(self, strength):
        self.strength = strength

    def apply(self, graph):
        return 0

def run(x, r, w):
    out, residual = ops.fused_add_rms_norm(ops.rms_norm(x, w, 1e-5) * 2, r, w, 1e-5)
    return torch.relu(out), residual

def donating(x, r, w):
    out, residual = ops.fused_add_rms_norm.maybe_inplace(ops.rms_norm(x, w, 1e-5) * 2, r, w, 1e-5)
    return torch.relu(out), residual

def trained(x, r, w):
    return checkpoint(lambda t: ops.rms_norm(torch.sin(t), w, 1e-5).sin(), x, use_reentrant=False)

x, r, w = torch.linspace(-1, 1, 128).view(4, 32), torch.ones(4, 32), torch.rand(32)

def case(name):
    options, function, dynamic = {}, run, False
    if name == "donation":
        function = donating
    if name == "priority":
        options["priority"] = {"rms_norm": "by_hand"}
    if name == "exact":
        options["exact"] = True
    if name.startswith("pass"):
        options["passes"] = [Users(name[4:])]
    if name == "dynamic training":
        dynamic = True
    state = runtime.current()
    state.load()
    before = state.landscape
    if name == "architecture":
        platform = copy.copy(state.platform)
        platform.devices = tuple(replace(device, name="another") for device in platform.devices)
        state.adopt(replace(before, platform=platform))
    torch._dynamo.reset()
    counters.clear()
    known = len(report().graphs)
    training = name.endswith("training")
    compiled = torch.compile(trained if training else function, backend=backend, options=options, dynamic=dynamic)
    with torch.set_grad_enabled(training):
        if training:
            compiled(x.clone().requires_grad_(), r, w).sum().backward()
        else:
            compiled(x.clone(), r.clone(), w)
    state.adopt(before)
    return {
        "aot": [counters["aot_autograd"]["autograd_cache_" + what] for what in ("hit", "miss", "bypass")],
        "fx": [counters["inductor"]["fxgraph_cache_" + what] for what in ("hit", "miss", "bypass")],
        "graphs": [
            {
                "name": each.name.split("/")[-1],
                "selected": each.selected,
                "cached": each.cached,
                "passes": [one.name for one in each.passes],
                "refusals": each.refusals,
                "text": str(each),
            }
            for each in report().graphs[known:]
        ],
    }

if sys.argv[1] == "digest":
    json.dump(Plan.take().digest, sys.stdout)
else:
    json.dump({name: case(name) for name in sys.argv[1].split(",")}, sys.stdout)
"""


@dataclass(frozen=True)
class Machine:
    """A folder of installed distributions, a program, and a folder for torch's caches.

    Attributes:
        path: the folder that holds them.
    """

    path: Path

    def install(
        self, version: str = "1.0", *, kernels: str = KERNELS, passes: str = PASSES, binary: bytes = b"one"
    ) -> None:
        """Write the distribution as an installer would."""
        site = self.path / "site"
        package, info = site / "kernels_by_hand", site / "kernels_by_hand.dist-info"
        package.mkdir(parents=True, exist_ok=True)
        info.mkdir(exist_ok=True)
        texts = {
            package / "__init__.py": "",
            package / "hooks.py": HOOKS,
            package / "kernels.py": kernels,
            package / "passes.py": passes,
            package / "vllm_ir_provider.toml": MANIFEST,
            info / "METADATA": f"Metadata-Version: 2.4\nName: {DISTRIBUTION}\nVersion: {version}\n",
            info / "entry_points.txt": "[vllm_ir.providers]\nby_hand = kernels_by_hand.hooks\n",
            info / "RECORD": "",
        }
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8")
        (package / "kernel.so").write_bytes(binary)
        (self.path / "program.py").write_text(textwrap.dedent(PROGRAM), encoding="utf-8")

    def run(self, what: str, *, seed: str = "0", folder: Path | None = None, **variables: str) -> Any:
        """Return what the program says in a process of its own."""
        known = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "TORCH"))}
        path = os.pathsep.join([str(self.path / "site"), *filter(None, [known.get("PYTHONPATH")])])
        ours = {
            "PYTHONPATH": path,
            "PYTHONHASHSEED": seed,
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self.path / "cache"),
            "VLLM_IR_PROVIDERS": "by_hand",
        }
        done = subprocess.run(
            [sys.executable, str(self.path / "program.py"), what],
            env={**known, **ours, **variables},
            cwd=folder or self.path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


HIT, MISS = [1, 0, 0], [0, 1, 0]

SAME = ("plain", "training", "dynamic training", "priority")
"""What the first process compiles."""

ALONE = ("donation", "exact", "pass1", "pass2", "architecture")
"""Ingredients of the key, each of which differs alone from the plain case, or from the one before."""


@dataclass(frozen=True)
class Story:
    """What four processes said that share torch's caches.

    Attributes:
        first: it finds nothing there.
        second: the same, under another hash seed and in another folder; then each ingredient of the key alone.
        third: another binary lies in the distribution.
        fourth: only Inductor's own cache is left.
    """

    first: Any
    second: Any
    third: Any
    fourth: Any


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Return what the processes said; one after another for all tests, since each costs seconds."""
    machine = Machine(tmp_path_factory.mktemp("machine"))
    machine.install()
    first = machine.run(",".join(SAME))
    second = machine.run(",".join((*SAME, *ALONE)), seed="1", folder=tmp_path_factory.mktemp("other"))
    machine.install(binary=b"two")
    third = machine.run("priority")
    machine.install()
    for file in (machine.path / "cache" / "aotautograd").rglob("*"):
        if file.is_file():
            file.unlink()
    return Story(first, second, third, machine.run("plain,training"))


@pytest.mark.parametrize("name", SAME)
def test_a_second_process_takes_all_from_the_caches_and_runs_no_pass(story: Story, name: str) -> None:
    """Both caches hit, and selections are told as the process told them that compiled."""
    first, second = story.first[name], story.second[name]
    assert (first["aot"], first["fx"][0]) == (MISS, 0)
    assert (second["aot"], second["fx"][1:]) == (HIT, [0, 0])
    assert all(each["cached"] and not each["passes"] for each in second["graphs"])
    assert [(each["name"], each["selected"]) for each in first["graphs"]] == [
        (each["name"], each["selected"]) for each in second["graphs"]
    ]


def test_what_was_selected_is_told_from_a_cache(story: Story) -> None:
    """By op and node, of forward and of backward graphs, and the text says where it comes from."""
    (plain,) = story.second["plain"]["graphs"]
    assert set(plain["selected"]) == {"rms_norm", "fused_add_rms_norm"}
    assert "from a cache" in plain["text"]
    (chosen,) = story.second["priority"]["graphs"]
    assert set(chosen["selected"]["rms_norm"].values()) == {"by_hand"}
    training = story.second["training"]["graphs"]
    assert [each["name"].partition(" ")[2] for each in training] == ["", "backward"]
    assert all("rms_norm" in each["selected"] for each in training)
    # The first pass once more for what is checkpointed, a graph inside the graph.
    ran = [list(dict.fromkeys(each["passes"])) for each in story.first["training"]["graphs"]]
    assert ran == [["functionalization", "Nothing", "lowering"], ["Nothing", "lowering"]]


@pytest.mark.parametrize("name", ALONE)
def test_each_ingredient_of_the_key_alone_misses(story: Story, name: str) -> None:
    """Both caches, in the process in which all else hits."""
    assert (story.second[name]["aot"], story.second[name]["fx"]) == (MISS, MISS)


def test_another_binary_under_the_same_python_misses(story: Story) -> None:
    """A rebuilt kernel is another kernel, though no line of Python and no version changed."""
    assert story.second["priority"]["aot"] == HIT
    assert (story.third["priority"]["aot"], story.third["priority"]["fx"]) == (MISS, MISS)


@pytest.mark.parametrize("name", ["plain", "training"])
def test_the_inner_cache_alone_tells_selections_too(story: Story, name: str) -> None:
    """Where only Inductor's own cache has a graph, the pass before AOTAutograd runs and those behind do not."""
    first, fourth = story.first[name], story.fourth[name]
    assert (fourth["aot"], fourth["fx"][1:]) == (MISS, [0, 0])
    assert [each["selected"] for each in fourth["graphs"]] == [each["selected"] for each in first["graphs"]]
    assert {one for each in fourth["graphs"] for one in each["passes"]} == {"functionalization"}
    assert all(each["cached"] for each in fourth["graphs"])


def test_what_a_distribution_consists_of_is_in_the_digest(tmp_path: Path) -> None:
    """Its version, its kernels' source and its passes' source each count; nothing else about the process does."""
    machine = Machine(tmp_path)
    machine.install()

    def digest(**how: Any) -> Any:
        """Return the digest of the plan of a process that puts the distribution's provider first."""
        return machine.run("digest", VLLM_IR_OP_PRIORITY="rms_norm=by_hand", **how)

    seen = [digest()]
    assert digest(seed="2", folder=machine.path / "site") == seen[0]
    changes: tuple[dict[str, Any], ...] = (
        {"version": "1.1"},
        {"kernels": KERNELS.replace("x * 2", "x * 3")},
        {"passes": PASSES.replace("return 0", "return len(graph.find_nodes(op='call_module'))")},
    )
    for change in changes:
        machine.install(**change)
        seen.append(digest())
    assert len(set(seen)) == len(seen)
