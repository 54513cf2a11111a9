"""What is remembered of compiled graphs: as values, in lines for people, and only so many."""

from __future__ import annotations

import pickle

import pytest
from vllm_ir.graphs import KEPT, BasePass, GraphRecord, PassRecord, Records, shortened

RECORD = GraphRecord(
    name="0/1",
    selected={
        "rms_norm": {f"rms_norm_{i}" if i else "rms_norm": "cpu_c" if i else "native" for i in range(33)},
        "silu_and_mul": {"silu_and_mul": "native"},
    },
    refusals=(("rms_norm", "cpu_c", "needs float32", 1),),
    passes=(PassRecord("functionalization", 0, 0.0005), PassRecord("lowering", 34, 0.02)),
    copies=2,
    seconds=0.0205,
)


def test_a_graph_is_told_in_one_line_and_each_refusal_in_another() -> None:
    """Per op who runs how many calls, then copies, then what it cost."""
    assert str(RECORD).splitlines() == [
        "graph 0/1: rms_norm by native and cpu_c (32x); silu_and_mul by native, 2 copies, our passes took 20.5 ms",
        "  cpu_c refused rms_norm 1x: needs float32",
    ]


def test_details_are_a_line_for_each_provider_of_each_op_and_each_pass() -> None:
    """However many layers there are."""
    assert list(RECORD.details()) == [
        "native runs rms_norm in rms_norm",
        "cpu_c runs rms_norm in rms_norm_1 to rms_norm_32",
        "native runs silu_and_mul in silu_and_mul",
        "pass functionalization: 0 changes in 0.5 ms",
        "pass lowering: 34 changes in 20.0 ms",
    ]


def test_a_graph_from_a_cache_and_one_without_ops_say_so() -> None:
    """Nothing took any time there."""
    assert str(GraphRecord("0/0 backward", {}, copies=1, cached=True)) == (
        "graph 0/0 backward: no op in it, 1 copy, from a cache"
    )
    assert str(GraphRecord("", {})).startswith("graph without a name: ")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a"], "a"),
        (["a", "a_1"], "a, a_1"),
        (["a", "a_1", "a_2"], "a to a_2"),
        (["a_2", "a_3", "a_4", "b", "a_5"], "a_2 to a_4, b, a_5"),
        (["a_1", "b_2", "b_3"], "a_1, b_2, b_3"),
        ([], ""),
    ],
)
def test_numbered_names_are_shortened(names: list[str], text: str) -> None:
    """Only where at least three follow each other."""
    assert shortened(names) == text


def test_records_travel_between_processes() -> None:
    """They are plain values."""
    assert pickle.loads(pickle.dumps(RECORD)) == RECORD  # noqa: S301 - our own bytes


def test_only_so_many_graphs_are_kept_and_all_are_counted() -> None:
    """A server that recompiles without end does not grow; a graph counts once for each provider of an op in it."""
    records = Records()
    for number in range(KEPT + 5):
        assert records.add(GraphRecord(str(number), RECORD.selected)).number == number + 1
    assert [records.all()[place].name for place in (0, -1)] == ["5", str(KEPT + 4)]
    assert records.counts("rms_norm") == {"native": KEPT + 5, "cpu_c": KEPT + 5}
    assert records.counts("silu_and_mul") == {"native": KEPT + 5}
    records.clear()
    assert (records.all(), records.counts("rms_norm")) == ((), {})


def test_a_pass_has_both_of_its_methods() -> None:
    """What neither changes graphs nor has a key is none."""

    class Half(BasePass):
        """Has no key."""

        def apply(self, graph: object) -> int:
            """Change nothing."""
            assert graph
            return 0

    with pytest.raises(TypeError, match="key"):
        Half()  # type: ignore[abstract]
