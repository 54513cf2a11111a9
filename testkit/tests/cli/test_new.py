"""`vllm-ir new` as its user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from vllm_ir.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


def test_a_distribution_is_written_and_the_next_commands_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file is named; the folder is given so that pip takes it for one."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "acme-sample"]) == 0
    out = capsys.readouterr().out
    assert "pip install -e ./vllm-ir-provider-acme-sample" in out
    assert "vllm-ir conformance acme_sample" in out
    assert (tmp_path / "vllm-ir-provider-acme-sample" / "pyproject.toml").is_file()


def test_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, folder and files."""
    assert main(["new", "acme_sample", "--into", str(tmp_path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["provider"] == "acme_sample"
    assert content["package"] == "vllm_ir_provider_acme_sample"
    assert "src/vllm_ir_provider_acme_sample/vllm_ir_provider.toml" in content["files"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("native", "keeps that name"), ("Demo", "lower-case"), ("a__b", "makes no name"), ("class", "keyword")],
)
def test_a_bad_name_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, sentence: str
) -> None:
    """Exit code 2, and nothing is written."""
    assert main(["new", name, "--into", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_it_imports_no_torch(tmp_path: Path) -> None:
    """Starting a provider takes a second."""
    code = (
        "import sys; from vllm_ir.cli.main import main\n"
        f"main(['new', 'acme_sample', '--into', {str(tmp_path)!r}]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
