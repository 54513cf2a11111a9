"""`vllm-ir conformance` as its user runs it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from torch import Tensor  # noqa: TC002 - torch reads the annotations of what is registered
from vllm_ir import Unsupported, implements
from vllm_ir.cli.main import main
from vllm_ir_testkit.checks import NAMES
from vllm_ir_testkit.cli import conformance

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_ir_testkit import TestManager


@implements("silu_and_mul", provider="some")
def wrong(x: Tensor) -> Tensor:
    """Return half of x."""
    return x[..., : x.shape[-1] // 2].contiguous()


@implements("silu_and_mul", provider="some", supported=Unsupported("needs another machine"))
def absent(x: Tensor) -> Tensor:
    """Never run."""
    return x


def test_a_clean_provider_ends_with_zero(manager: TestManager, capsys: pytest.CaptureFixture[str]) -> None:
    """A row per op and a sentence."""
    del manager
    assert conformance.run(["native", "--op", "silu_and_mul", "--check", "zero_tokens"]) == 0
    assert "silu_and_mul  1 " in capsys.readouterr().out


def test_a_finding_ends_with_one_and_is_shown(manager: TestManager, capsys: pytest.CaptureFixture[str]) -> None:
    """The check, what it demands, and the first cases."""
    manager.add(wrong)
    assert conformance.run(["some", "--check", "values"]) == 1
    out = capsys.readouterr().out
    assert "silu_and_mul: values: equals native" in out
    assert "and " in out
    assert "more" in out


def test_nothing_to_check_ends_with_three(manager: TestManager, capsys: pytest.CaptureFixture[str]) -> None:
    """With the reason of each op."""
    manager.add(absent)
    assert conformance.run(["some"]) == 3
    out = capsys.readouterr().out
    assert "needs another machine" in out
    assert "nothing to check" in out


def test_json_and_markdown(manager: TestManager, capsys: pytest.CaptureFixture[str]) -> None:
    """Data on stdout and nothing else."""
    manager.add(wrong)
    conformance.run(["some", "--check", "values", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert content["version"] == "1"
    assert content["clean"] is False
    conformance.run(["some", "--check", "values", "--markdown"])
    assert "| values | ✗ |" in capsys.readouterr().out


def test_known_failures_are_taken_from_a_file(manager: TestManager, tmp_path: Path) -> None:
    """An option beside what the package carries."""
    manager.add(wrong)
    file = tmp_path / "known.toml"
    file.write_text(
        'schema = 1\n[[failure]]\nop = "silu_and_mul"\ncheck = "values"\nreason = "on purpose"\n', encoding="utf-8"
    )
    assert conformance.run(["some", "--check", "values", "--known", str(file)]) == 0


def test_a_typing_error_ends_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    """With a suggestion, through the real entrance."""
    assert main(["conformance", "natve"]) == 2
    assert "Did you mean 'native'" in capsys.readouterr().err
    assert main(["conformance", "native", "--check", "valus"]) == 2
    assert main(["conformance", "native", "--op", "rms_nrm"]) == 2


def test_the_checks_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with what it demands."""
    assert conformance.run(["--list", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["checks"]] == list(NAMES)


def test_nothing_is_left_in_the_working_directory(
    manager: TestManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypothesis would keep notes there."""
    manager.add(wrong)
    monkeypatch.chdir(tmp_path)
    conformance.run(["some", "--check", "values"])
    assert list(tmp_path.iterdir()) == []


def test_without_a_provider_the_usage_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, as for any wrong usage."""
    with pytest.raises(SystemExit) as caught:
        conformance.run([])
    assert caught.value.code == 2
    assert "name a provider" in capsys.readouterr().err
