"""What is made of what a process told: how bad it is, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_ir.diagnosis import results
from vllm_ir.diagnosis.results import Target, judge

TARGET = Target("fast", "dist-fast", "1.0")


def part(outcome: str, reason: str | None = None) -> dict[str, Any]:
    """Return what came of one part."""
    result = {"what": "rms_norm", "dtype": "float32", "outcome": outcome, "reason": reason, "traceback": None}
    return {"result": result}


@pytest.mark.parametrize(
    ("facts", "outcome", "reason"),
    [
        ([], "runs", None),
        ([part("agrees"), part("refuses", "no")], "runs", None),
        ([part("refuses", "no")], "refuses", None),
        ([part("differs", "by one.")], "differs", "rms_norm, float32: it differs from native: by one."),
        (
            [part("differs", "by one."), part("raises", "OSError: no")],
            "fails",
            "rms_norm, float32: it raised OSError: no (1 more below)",
        ),
        ([{"failure": {"reason": "It did not load.", "traceback": "T"}}], "fails", "It did not load."),
    ],
)
def test_the_worst_part_decides(facts: list[dict[str, Any]], outcome: str, reason: str | None) -> None:
    """What raised goes before what differs; a refusal is an answer and no finding."""
    judged = judge(TARGET, [{"step": "loading"}, *facts, {"step": "done"}], 1.5)
    assert (judged.outcome, judged.reason, judged.fault) == (outcome, reason, reason is not None)
    told = judged.describe()
    assert (told["provider"], told["distribution"], told["seconds"]) == ("fast", "dist-fast", 1.5)
    assert len(told["parts"]) == sum("result" in fact for fact in facts)


def test_the_last_step_counts() -> None:
    """A process that told nothing was starting."""
    assert results.step_of([]) == "starting"
    assert results.step_of([{"step": "a"}, {"result": {}}, {"step": "b"}, {"other": 1}]) == "b"


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0 before it had done its work"), (-11, "SIGSEGV"), (-250, "signal 250")],
)
def test_an_end_is_told_in_words(code: int, words: str) -> None:
    """Signals by their names, where they have one; an exit is too early whatever its code."""
    assert results.how_it_ended(code) == words
