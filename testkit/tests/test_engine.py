"""Running checks and making a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch import Tensor  # noqa: TC002 - torch reads the annotations of what is registered
from vllm_ir import Unsupported, implements
from vllm_ir_testkit import KnownFailure, conformance, engine
from vllm_ir_testkit.errors import NoSuchCheck
from vllm_ir_testkit.outcome import FAILED, KNOWN, PASSED, SKIPPED
from vllm_ir_testkit.plan import make_plan

if TYPE_CHECKING:
    from vllm_ir_testkit import TestManager


def nothing(x: Tensor) -> Unsupported:
    """Refuse every call."""
    return Unsupported(f"takes nothing at all, and no {x.dtype}")


@implements("silu_and_mul", provider="some", supports_args=nothing)
def refuses(x: Tensor) -> Tensor:
    """Never run."""
    return x


@implements("silu_and_mul", provider="some")
def wrong(x: Tensor) -> Tensor:
    """Return half of x."""
    return x[..., : x.shape[-1] // 2].contiguous()


def test_checks_run_in_their_own_order() -> None:
    """Whatever order they are named in."""
    assert engine.select(["values", "manifest"]) == ("manifest", "values")
    with pytest.raises(NoSuchCheck, match="Did you mean 'values'"):
        engine.select(["value"])


def test_a_provider_that_refuses_every_case_passes_nothing(manager: TestManager) -> None:
    """What was never run is skipped with the reason, not green."""
    manager.add(refuses)
    report = manager.conformance("some", checks=["values", "layout", "zero_tokens"])
    assert {each.state for each in report.outcomes} == {SKIPPED}
    assert {each.reason for each in report.outcomes} == {"the provider refuses every case"}
    assert report.exit_code == 3


def test_a_known_failure_fails_nobody(manager: TestManager) -> None:
    """Exit code 0, and the reason stays in the report."""
    manager.add(wrong)
    entry = KnownFailure("silu_and_mul", "values", "being mended")
    report = conformance("some", names=["values"], known_failures=[entry])
    assert report.outcomes[0].state == KNOWN
    assert report.exit_code == 0
    assert report.outcomes[0].findings[0].known == "being mended"


def test_a_known_failure_that_passes_fails(manager: TestManager) -> None:
    """Strict: the entry has to go."""
    manager.add(wrong)
    entry = KnownFailure("silu_and_mul", "layout", "mended long ago")
    report = conformance("some", names=["layout"], known_failures=[entry])
    assert report.outcomes[0].state == FAILED
    assert report.exit_code == 1


def test_a_check_that_breaks_is_red_and_stops_nobody(manager: TestManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the kit itself is no pass."""
    manager.add(wrong)

    def broken(*_: object) -> None:
        """Raise."""
        message = "lost"
        raise RuntimeError(message)

    monkeypatch.setattr("vllm_ir_testkit.checks.verdict.check", broken)
    report = manager.conformance("some", checks=["verdict", "zero_tokens"])
    assert [each.state for each in report.outcomes] == [FAILED, PASSED]
    assert "stopped: RuntimeError: lost" in report.outcomes[0].findings[0].what


def test_steps_are_told(manager: TestManager) -> None:
    """What a bar shows: steps done, steps in all, and what comes."""
    manager.add(wrong)
    told: list[tuple[int, int, str]] = []
    engine.run(make_plan("some"), ["zero_tokens", "verdict"], tell=lambda *step: told.append(step))
    assert told == [(0, 2, "silu_and_mul: verdict"), (1, 2, "silu_and_mul: zero_tokens")]


def test_checks_that_need_a_gpu_say_so() -> None:
    """Present, and skipped with the reason on a machine without one."""
    report = conformance("native", ["silu_and_mul"], ["second_stream", "cuda_graph", "two_devices"])
    if report.platform.startswith("cpu"):
        assert {each.reason for each in report.outcomes} == {"needs a CUDA device"}
        assert len(report.outcomes) == 3
