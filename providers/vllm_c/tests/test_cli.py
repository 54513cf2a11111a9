"""`python -m vllm_ir_provider_vllm_c build`: cubins in a folder, usable without a compiler."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import stat
import subprocess
import sys
import tempfile
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
    """The folder holds what a machine without NVRTC reads, for every user; the names are printed, and what to do."""
    monkeypatch.setattr(
        compiling, "compile_program", lambda program, arch: Cubin(f"{program.name} {arch}".encode(), {})
    )
    assert main(["build", "--arch", "sm_80, sm_90", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2 * len(PROGRAMS)
    assert f"Nothing is read from {tmp_path / 'out'}: copy the files into" in said.err
    assert {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "out").iterdir()} == {0o644}
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


def test_what_is_built_into_the_package_is_read_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --out, and with nothing to copy."""
    monkeypatch.setattr(cubins, "BUILT", tmp_path / "built")
    monkeypatch.setattr(compiling, "compile_program", lambda *_: Cubin(b"code", {}))
    assert main(["build", "--arch", "sm_80"]) == 0
    assert capsys.readouterr().err == ""
    assert {cubins.fetch(program, "sm_80").code for program in PROGRAMS} == {b"code"}


def build_on_a_full_disk(out: str) -> int:
    """Build in a process whose files may hold 600 bytes, which is enough for what is said."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    return main(["build", "--arch", "sm_80", "--out", out])


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/none", "closed", "full"])
def test_a_folder_that_cannot_be_written_is_one_sentence_and_exit_code_1(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file in its place, no folder to make one in, closed, or a full disk: no name is printed as if it were built."""
    monkeypatch.setattr(compiling, "compile_program", lambda *_: Cubin(bytes(1000), {}))
    (tmp_path / "file").touch()
    path = tmp_path / out
    if out == "full":
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(build_on_a_full_disk, (str(path),)) == 1
        assert list(path.iterdir()) == []
    else:
        if out == "closed":

            def refuse(**_: object) -> None:
                """Refuse as a folder does that is another's; root would be let in."""
                raise PermissionError(13, "Permission denied")

            monkeypatch.setattr(tempfile, "mkstemp", refuse)
        assert main(["build", "--arch", "sm_80", "--out", str(path)]) == 1
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"vllm_c cannot write {path}")
    assert said.err.endswith("Name a folder that you can write, with room in it: --out FOLDER.\n")
    assert len(said.err.splitlines()) == 1


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
