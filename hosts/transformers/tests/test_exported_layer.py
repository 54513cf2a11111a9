"""A decoder layer of the default model is exported with its ops, packaged, and run where nothing of ours compiles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from vllm_ir import ops
from vllm_ir.compile import decomposition_table
from vllm_ir.environment import Environment
from vllm_ir_host_transformers import use_ir_ops
from vllm_ir_host_transformers.errors import ModelNotFetched
from vllm_ir_host_transformers.models import loading
from vllm_ir_host_transformers.models.default import default_model
from vllm_ir_host_transformers.models.steps import Silence

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = 12
FOUND = ("fused_add_rms_norm", "rms_norm", "rotary_embedding", "silu_and_mul")

ELSEWHERE = """
import json
import sys
import torch

if sys.argv[2] == "ops":
    import vllm_ir.ops
run = torch._inductor.aoti_load_package(sys.argv[1])
hidden, positions, wanted = torch.load("values.pt")
with torch.no_grad():
    got, few = run(hidden, positions), run(hidden[:, :5], positions[:, :5])
print(json.dumps({
    "close": torch.allclose(got, wanted, rtol=1e-4, atol=1e-4),
    "few": torch.allclose(few, wanted[:, :5], rtol=1e-4, atol=1e-4),
    "ours": sorted({name.partition(".")[0] for name in sys.modules if name.startswith("vllm_ir")}),
    "compile": "vllm_ir.compile" in sys.modules,
}))
"""


class Layer(nn.Module):
    """The first layer of a model, with the angles that the model gives it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.layer, self.angles = model.model.layers[0], model.model.rotary_emb

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Run the layer."""
        out = self.layer(hidden, position_embeddings=self.angles(hidden, positions), position_ids=positions)
        result: Tensor = out[0] if isinstance(out, tuple) else out
        return result


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.export.ExportedProgram, Path]:
    """Give the layer as an exported program for any number of tokens, and a folder with a call and eager's answer."""
    try:
        folder = str(default_model(Environment.read().cache, Silence()))
    except ModelNotFetched as error:
        pytest.skip(str(error))
    model: Any = loading.load(folder, dtype="float32", device="cpu").model
    ids, positions = torch.arange(TOKENS)[None] * 37, torch.arange(TOKENS)[None]
    hidden = model.model.embed_tokens(ids).detach()
    place = tmp_path_factory.mktemp("exported")
    with torch.no_grad():
        plain = Layer(model)(hidden, positions)
        with use_ir_ops(model):
            layer, tokens = Layer(model).eval(), torch.export.Dim("tokens", min=2, max=512)
            torch.testing.assert_close(layer(hidden, positions), plain, rtol=1e-4, atol=1e-4)
            program = torch.export.export(layer, (hidden, positions), dynamic_shapes=({1: tokens}, {1: tokens}))
    torch.save((hidden, positions, plain), place / "values.pt")
    return program, place


def calls(program: torch.export.ExportedProgram) -> list[str]:
    """Return the ops of ours that a program calls, each once."""
    names = {getattr(ops, name).torch_op.overloadpacket: name for name in ops.__all__}
    packets = (getattr(node.target, "overloadpacket", None) for node in program.graph.nodes)
    return sorted({names[packet] for packet in packets if packet in names})


def elsewhere(place: Path, package: str, imports: str) -> dict[str, Any]:
    """Load and run a package in a process of its own, and return what it found."""
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE, package, imports]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def package(program: torch.export.ExportedProgram, place: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Compile a program into a file; nothing comes from a cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", os.fspath(place / "cache"))
    made = torch._inductor.aoti_compile_and_package(program, package_path=os.fspath(place / f"{name}.pt2"))
    assert made == os.fspath(place / f"{name}.pt2")
    return f"{name}.pt2"


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler, g++")


@needs_compiler
def test_a_layer_of_natives_needs_torch_alone(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken apart into natives, it runs where no module of ours is imported, for any number of tokens."""
    program, place = exported
    assert tuple(calls(program)) == FOUND
    apart = program.run_decompositions({**torch.export.default_decompositions(), **decomposition_table()})
    assert calls(apart) == []
    answer = elsewhere(place, package(apart, place, "apart", monkeypatch), "nothing")
    assert answer == {"close": True, "few": True, "ours": [], "compile": False}


@needs_compiler
def test_a_layer_of_whole_ops_selects_where_it_runs(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept whole, the ops dispatch in the process that loads the file, which imports the ops and no compile code."""
    program, place = exported
    answer = elsewhere(place, package(program, place, "whole", monkeypatch), "ops")
    assert answer["close"]
    assert answer["few"]
    assert "vllm_ir" in answer["ours"]
    assert not answer["compile"]
