"""What may be tried: only launches that may run, the one in use first; and what is kept is what is launched next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops
from vllm_ir_provider_triton import geometry, loading, tuned, tuning
from vllm_ir_provider_triton.configuration import Shape

if TYPE_CHECKING:
    from pathlib import Path

OPS = tuple(tuning.KINDS)


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune for an architecture that is not here."""
    monkeypatch.setattr(loading, "architecture", lambda _: "sm_90")


def call(op: str, tokens: int = 100) -> tuple[Any, ...]:
    """Return the arguments of a call."""
    return getattr(ops, op).generate_inputs(num_tokens=tokens, hidden_size=1024, dtype=torch.bfloat16)  # type: ignore[no-any-return]


@pytest.mark.parametrize("op", OPS)
def test_candidates_may_all_be_launched(op: str) -> None:
    """There is a choice for every op, each once."""
    found = tuning.FREE.candidates(op, call(op))
    assert len(found) == len(set(found)) >= 4
    assert len({each.key for each in found}) == 1
    assert all(str(each).endswith("warps") for each in found)
    assert tuning.FREE.candidates("another_op", ()) == ()


def test_few_rows_are_another_entry_unless_the_batch_must_not_matter() -> None:
    """What the batch-invariant provider is tuned by never depends on how many rows there were."""
    keys = {
        (tuner is tuning.FIXED, tokens): tuner.candidates("rms_norm", call("rms_norm", tokens))[0].key
        for tuner in (tuning.FREE, tuning.FIXED)
        for tokens in (1, 100)
    }
    assert keys[False, 1] == "norm 1024x2 few"
    assert len({keys[False, 100], keys[True, 1], keys[True, 100]}) == 1


@pytest.mark.parametrize("op", ["rms_norm", "rotary_embedding"])
def test_a_candidate_is_launched_while_it_is_tried_and_when_it_is_kept(op: str) -> None:
    """And the one before comes back in between."""
    args = call(op)
    now, *others = tuning.FREE.candidates(op, args)
    other = others[-1]
    with tuning.FREE.using(other):
        assert tuning.FREE.candidates(op, args)[0] == other
    assert tuning.FREE.candidates(op, args)[0] == now
    assert tuning.FREE.keep([other]) == tuned.file()
    assert tuning.FREE.candidates(op, args)[0] == other
    with tuning.FREE.using(now):
        assert tuning.FREE.candidates(op, args)[0] == now
    assert tuning.FREE.candidates(op, args)[0] == other


def test_a_tuned_launch_is_planned(tmp_path: Path) -> None:
    """From the table to the launch; a file elsewhere changes nothing here."""
    x, weight, epsilon = call("rms_norm")
    args = ("rms_norm", x, None, weight, epsilon, None, torch.empty_like(x), None, "sm_90")
    found = tuning.FREE.candidates("rms_norm", (x, weight, epsilon))
    before = geometry.norm(*args, fixed=False).variant
    other = next(each for each in found if each.rows == 1 and each.warps == 2)
    assert tuning.FREE.keep([other], tmp_path / "elsewhere.json") == tmp_path / "elsewhere.json"
    assert geometry.norm(*args, fixed=False).variant == before
    tuning.FREE.keep([other])
    after = geometry.norm(*args, fixed=True).variant
    assert Shape(after.constants[5], after.constants[6], after.warps) == Shape(1, 1024, 2)
