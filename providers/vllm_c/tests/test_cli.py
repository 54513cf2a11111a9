"""`python -m vllm_ir_provider_vllm_c build`: cubins in a folder, usable without a compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from vllm_ir_provider_vllm_c import compiling, cubins
from vllm_ir_provider_vllm_c.cli.main import main
from vllm_ir_provider_vllm_c.compiling import Cubin
from vllm_ir_provider_vllm_c.errors import CannotCompile
from vllm_ir_provider_vllm_c.variants import PROGRAMS, Program

if TYPE_CHECKING:
    from pathlib import Path


def test_every_program_is_built_for_every_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder holds what a machine without NVRTC reads, and the names are printed."""
    monkeypatch.setattr(
        compiling, "compile_program", lambda program, arch: Cubin(f"{program.name} {arch}".encode(), {})
    )
    assert main(["build", "--arch", "sm_80, sm_90", "--out", str(tmp_path / "out")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 * len(PROGRAMS)
    for program in PROGRAMS:
        found = cubins.read_built(program, "sm_89", tmp_path / "out")
        assert found is not None
        assert found.code.decode() == f"{program.name} sm_80"
        assert cubins.read_built(program, "sm_100", tmp_path / "out") is None


def test_a_program_that_does_not_compile_is_one_sentence_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, without a traceback."""

    def refuse(program: Program, arch: str) -> Cubin:
        """Refuse as the compiler does."""
        raise CannotCompile(program=program.name, arch=arch, compiler="NVRTC 13.0", log="invalid architecture")

    monkeypatch.setattr(compiling, "compile_program", refuse)
    assert main(["build", "--arch", "sm_10", "--out", str(tmp_path)]) == 1
    assert "does not compile norm_float32 for sm_10:\n    invalid architecture" in capsys.readouterr().err


@pytest.mark.parametrize("arch", ["", "90", "sm_90;rm", "compute_90"])
def test_what_is_no_architecture_is_wrong_usage(arch: str) -> None:
    """Exit code 2, from the interpreter's own door."""
    done = subprocess.run(
        [sys.executable, "-m", "vllm_ir_provider_vllm_c", "build", "--arch", arch],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "wanted such as sm_80,sm_90" in done.stderr
