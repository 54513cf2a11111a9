"""The hooks: they say what the manifest says, load nothing early, and this machine's refusal is the true one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import vllm_ir_provider_aiter
from vllm_ir import current_platform
from vllm_ir.platforms import detect
from vllm_ir.plugins.manifest import FILE
from vllm_ir.plugins.manifest_file import read_manifest
from vllm_ir_provider_aiter import hooks, predicates, symbols

if TYPE_CHECKING:
    from vllm_ir.plugins.manifest import Manifest

    from providers.aiter_stub.tests.conftest import Site

MANIFEST = Path(vllm_ir_provider_aiter.__file__).parent / FILE

needs_none = pytest.mark.skipif(detect().is_rocm(), reason="this machine has an AMD GPU, and nothing refuses it")


def manifest() -> Manifest:
    """Return what the manifest says."""
    return read_manifest(MANIFEST.read_bytes(), str(MANIFEST))


def test_the_manifest_says_what_the_hook_returns(site: Site) -> None:
    """Provider, ops and flags are the same in the file and in the declarations."""
    assert site.package.is_dir()
    declared = hooks.vllm_ir_implementations(current_platform)
    said = {
        (name, op.name, op.inplace, op.batch_invariant)
        for name, provider in manifest().providers.items()
        for op in provider.ops.values()
    }
    assert {(one.provider, one.op_name, one.inplace, one.batch_invariant) for one in declared} == said
    assert {one.op_name for one in declared} == set(symbols.CALLED)
    assert all(one.supported is True for one in declared)


def test_the_manifest_lists_the_dtypes_that_the_predicates_take() -> None:
    """A static answer and a live one agree on dtypes."""
    provider = manifest().providers["aiter"]
    assert provider.dtypes == tuple(str(dtype).removeprefix("torch.") for dtype in predicates.DTYPES)


def test_the_version_that_was_read_is_in_the_range() -> None:
    """The range and the version are written in two places."""
    from vllm_ir.plugins.requirements import in_range

    (requirement,) = manifest().providers["aiter"].requires
    assert in_range(symbols.READ, requirement.versions)
    assert requirement.distributions == ("amd-aiter",)


def test_defaults_are_for_eager_calls_of_what_rounds_as_native() -> None:
    """Compiled graphs keep native; what AITER rounds otherwise is in no list."""
    said = manifest().providers["aiter"].defaults
    assert said.eager == {"rms_norm": ("rocm",), "rotary_embedding": ("rocm",)}
    assert said.compiling == {}


PROBE = """
import sys
import vllm_ir_provider_aiter.hooks
early = [name for name in ("torch", "aiter", "vllm_ir_provider_aiter.kernels") if name in sys.modules]
from vllm_ir.cli.main import main
main(["explain", "rms_norm", "--json"])
code = main(["conformance", "aiter", "--json"])
import json
print(json.dumps([early, "aiter" in sys.modules, code]))
"""


@needs_none
def test_a_machine_without_an_amd_gpu_is_told_so() -> None:
    """`explain` gives the true reason, `conformance` ends with nothing to check, and nothing was imported for it."""
    pytest.importorskip("vllm_ir_testkit", reason="needs vllm-ir-testkit, which brings the verb")
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    decoder, texts, rest = json.JSONDecoder(), [], done.stdout
    while rest.strip():
        value, end = decoder.raw_decode(rest := rest.strip())
        texts.append(value)
        rest = rest[end:]
    explained, judged, (early, imported, code) = texts
    reason = (
        "Provider 'aiter' of vllm-ir-provider-aiter is for rocm (gfx942, gfx950); this machine is"
        f" {explained['platform']['name']}."
    )
    mine = next(each for each in explained["candidates"] if each["provider"] == "aiter")
    assert (mine["accepted"], mine["reason"]) == (False, reason)
    assert set(judged["refused"].values()) == {reason}
    assert (early, imported, code) == ([], False, 3)


def test_no_gpu_is_touched_by_declaring() -> None:
    """A worker may still fork afterwards."""
    assert not torch.cuda.is_initialized()
