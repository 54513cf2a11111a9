"""Sentences about graphs: they say who, where and what to do, keep their facts, and survive pickling."""

from __future__ import annotations

import pickle

import pytest
from vllm_ir.errors import (
    BatchGuard,
    ConfigurationError,
    DeclarationError,
    EndlessLowering,
    IrError,
    SelectionError,
    UntraceableImplementation,
    UsedAfterDonation,
    WrongResults,
)

WHERE = "model.py:7, in forward: x, r = fused.maybe_inplace(x, r, w, 1e-5)"
USED = UsedAfterDonation(
    op="fused", argument="x", node="l_x_", user="add", where=WHERE, used="model.py:9, in forward: x + 1"
)
ERRORS: list[tuple[IrError, type, list[str]]] = [
    (
        USED,
        DeclarationError,
        ["fused.maybe_inplace", "model.py:7", "'x'", "'l_x_'", "'add'", "model.py:9", ".clone()"],
    ),
    (
        BatchGuard(op="norm", provider="fast", guard="s0 > 7", where=WHERE),
        DeclarationError,
        ["'norm'", "'fast'", "model.py:7", "s0 > 7", "trailing sizes"],
    ),
    (
        UntraceableImplementation(op="norm", provider="fast", cause="RuntimeError: no data", where=WHERE),
        SelectionError,
        ["'norm'", "'fast'", "model.py:7", "RuntimeError: no data", "vllm_ir.make_torch_op"],
    ),
    (
        WrongResults(got=["torch.float32[4, 8]"], wanted=["torch.float32[4, 16]"]),
        DeclarationError,
        ["torch.float32[4, 8]", "native's are torch.float32[4, 16]"],
    ),
    (
        WrongResults(got=["torch.float32[4, 8]"], wanted=["torch.float32[4, 16]"]),
        DeclarationError,
        ["the shape is [4, 8], wanted [4, 16]."],
    ),
    (
        WrongResults(
            got=["torch.float16[4]", "torch.int64[2]", "list"],
            wanted=["torch.float16[4]", "torch.int32[3]", "torch.int32[3]"],
        ),
        DeclarationError,
        [
            "the dtype of result 1 is torch.int64, wanted torch.int32; the shape of result 1 is [2], wanted [3]",
            "the type of result 2 is list, wanted torch.int32",
        ],
    ),
    (
        WrongResults(got=[], wanted=["torch.float32[4]"]),
        DeclarationError,
        ["Its results are none", "it returns 0, wanted 1"],
    ),
    (
        UntraceableImplementation(op="norm", provider="fast", cause="It is odd", where="", fix="Mend it."),
        SelectionError,
        ["cannot be put into a graph: It is odd. Mend it."],
    ),
    (
        UsedAfterDonation(
            op="fused", argument="x", node="y", user="the function's result", where="", used="", expression="h.view(2)"
        ),
        DeclarationError,
        ["donates `h.view(2)` as argument 'x' (graph node 'y'), and the function's result uses that memory"],
    ),
    (EndlessLowering(op="norm", chain=["norm", "fused", "norm"]), SelectionError, ["norm -> fused -> norm", "another"]),
]


@pytest.mark.parametrize(("error", "kind", "parts"), ERRORS, ids=lambda value: type(value).__name__)
def test_sentences(error: IrError, kind: type, parts: list[str]) -> None:
    """An error is of the kind that whoever caused it catches, says all there is to say, and pickles."""
    assert isinstance(error, kind)
    assert not isinstance(error, ConfigurationError)
    for part in parts:
        assert part in str(error)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made above
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_unknown_places_are_left_out() -> None:
    """Where a line is not known, the sentence has no gap."""
    error = UsedAfterDonation(op="fused", argument="x", node="x", user="add", where="", used="")
    assert "fused.maybe_inplace donates its argument 'x'" in str(error)
    assert " at ." not in str(error)
