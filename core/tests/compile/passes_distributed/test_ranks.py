"""Sequence parallelism on ranks that really run: values, collectives and bytes, in the graph and when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS, TOKENS, HIDDEN, FLOAT = 3, 32, 64, 4
WHOLE = TOKENS * HIDDEN * FLOAT
SUMS = 2 * LAYERS


def told_by(request: pytest.FixtureRequest, size: int) -> list[Any]:
    """Return what each of so many ranks has seen."""
    found: list[Any] = request.getfixturevalue({2: "two", 4: "four"}[size])
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_values_are_those_of_tensor_parallelism(request: pytest.FixtureRequest, size: int) -> None:
    """Bit for bit on two ranks, since two numbers have one sum; on four, additions may come in another order."""
    for rank in told_by(request, size):
        for way in ("plain", "parallel", "parallel whole"):
            assert rank["decoder"][way]["equal"] or size == 4
            assert rank["decoder"][way]["far"] <= (0.0 if size == 2 else 1e-5)


def test_whole_numbers_are_the_same_to_the_bit_on_four_ranks(four: list[Any]) -> None:
    """No order of addition rounds them, so what is left to differ is where rows are normalised, and that does not."""
    for rank in four:
        assert rank["whole_numbers"]["equal"] == [True, True]
        assert rank["whole_numbers"]["passes"][1]["changes"] == 1


@pytest.mark.parametrize("size", [2, 4])
def test_collectives_are_counted_in_the_graph_and_when_it_runs(request: pytest.FixtureRequest, size: int) -> None:
    """Each all-reduce becomes a reduce-scatter and an all-gather of its size, and each rank sends as much as before."""
    for rank in told_by(request, size):
        before, behind = rank["decoder"]["plain"], rank["decoder"]["parallel"]
        share = WHOLE * (size - 1) // size
        assert before["traffic"] == {
            "all_reduce": {"calls": SUMS, "payload": SUMS * WHOLE, "sent": 2 * SUMS * share},
        }
        half = {"calls": SUMS, "payload": SUMS * WHOLE, "sent": SUMS * share}
        assert behind["traffic"] == {"reduce_scatter_tensor": half, "all_gather_into_tensor": half}
        for each in (before, behind):
            assert each["calls"] == {kind: counted["calls"] for kind, counted in each["traffic"].items()}
            assert each["payload"] == {kind: counted["payload"] for kind, counted in each["traffic"].items()}


@pytest.mark.parametrize("size", [2, 4])
def test_a_residual_holds_its_part_of_the_bytes(request: pytest.FixtureRequest, size: int) -> None:
    """In every layer, from the first, which is cut where it lies, to the last, which nobody reads whole."""
    for rank in told_by(request, size):
        assert rank["decoder"]["plain whole"]["residuals"] == [WHOLE] * SUMS
        assert rank["decoder"]["parallel whole"]["residuals"] == [WHOLE // size] * SUMS


@pytest.mark.parametrize("size", [2, 4])
def test_memory_peaks_lower(
    request: pytest.FixtureRequest, size: int, record_property: Callable[[str, object], None]
) -> None:
    """All that is made while the graph runs, without its inputs: what is missing is most of a residual."""
    for rank in told_by(request, size):
        before, behind = (rank["decoder"][way]["peak"] for way in ("plain", "parallel"))
        record_property(f"peak of {size} ranks", f"{before} bytes before, {behind} behind")
        assert behind <= before - WHOLE * (size - 1) // size


def test_batches_are_shared_out_by_rows(two: list[Any]) -> None:
    """One batch does not divide, its tokens do; what reads them in three dimensions still gets those."""
    for rank in two:
        found = rank["batches"]["parallel whole"]
        assert found["equal"]
        assert found["residuals"] == [WHOLE // 2] * 4
        assert found["calls"] == {"reduce_scatter_tensor": 4, "all_gather_into_tensor": 4}


def test_a_donated_part_is_written_where_it_lies(two: list[Any]) -> None:
    """A kernel that writes over its activations needs no copy of a residual that the layer before gave away."""
    for rank in two:
        found = rank["donated"]
        assert found["parallel"]["equal"]
        assert found["by"]["fused_add_rms_norm"] == {"probe": 4}
        # The first residual is the caller's, who donated all of it.
        assert found["copies"] == 0


@pytest.mark.parametrize("scenario", ["written", "sharded"])
def test_however_a_program_adds_up(two: list[Any], scenario: str) -> None:
    """By `dist.all_reduce`, which writes to its argument, and by a distributed tensor that is asked for whole."""
    for rank in two:
        assert rank[scenario]["far"] == 0.0
        assert sorted(rank[scenario]["traffic"]) == ["all_gather_into_tensor", "reduce_scatter_tensor"]


def test_a_residual_that_a_program_adds_by_itself(two: list[Any]) -> None:
    """The same bits, and beside two normalised values only the last sum is gathered, which is returned."""
    for rank in two:
        found = rank["added"]
        assert found["equal"] == [True, True]
        assert {kind: each["calls"] for kind, each in found["traffic"].items()} == {
            "reduce_scatter_tensor": 2,
            "all_gather_into_tensor": 3,
        }


def test_an_open_number_of_tokens_stays_without_a_guard(four: list[Any]) -> None:
    """One graph serves all of them, and the report says what would change that."""
    for rank in four:
        found = rank["guarded"]["False"]
        assert found["far"] == [0.0] * 6
        assert found["graphs"] == 1
        assert found["moved"] == [["all_reduce"]] * 6
        ((op, reason, count),) = found["passes"][1]["misses"]
        assert (op, count) == ("all_reduce", 1)
        assert "is open, and whether 4 ranks divide it is not known: guard=True compiles one graph" in reason


def test_a_guard_makes_two_graphs_of_all_numbers(four: list[Any]) -> None:
    """One for numbers that divide and one for the others, whatever the numbers are and in whatever order they come."""
    both, one = ["all_gather_into_tensor", "reduce_scatter_tensor"], ["all_reduce"]
    for rank in four:
        found = rank["guarded"]["True"]
        assert max(found["far"]) <= 1e-6
        assert found["graphs"] == 2
        assert found["moved"] == [both, both, one, both, one, both]
        assert "does not divide by 4 ranks here" in found["passes"][1]["misses"][0][1]


QUANTIZED = {"static": 1, "token": 2, "group": 2, "fused": 2}
"""How many results each way of quantising has to gather."""


@pytest.mark.parametrize("way", list(QUANTIZED))
def test_what_is_quantised_is_gathered_behind_that(two: list[Any], way: str) -> None:
    """Half of the bytes of bfloat16 and what scales need, bit for bit as before."""
    scales = {"static": 0, "token": TOKENS * 4, "group": TOKENS * HIDDEN // 16 * 4, "fused": TOKENS * 4}[way]
    for rank in two:
        found = rank["quantized"][way]
        assert found["equal"]
        payload = TOKENS * HIDDEN + scales
        moved = found["traffic"]["all_gather_into_tensor"]
        assert moved == {"calls": QUANTIZED[way], "payload": payload, "sent": payload // 2}
        assert found["passes"][1]["misses"] == []


@pytest.mark.parametrize(
    ("way", "op", "reason"),
    [
        ("tensor", "dynamic_quant_fp8", "its result 1 is not made row by row: it has the shape [1]"),
        ("columns", "dynamic_group_quant_fp8", "its result 1 does not lie in memory row by row"),
    ],
)
def test_what_needs_all_rows_is_quantised_behind_the_gathering(two: list[Any], way: str, op: str, reason: str) -> None:
    """A scale of the whole tensor, and scales in an order that gathered rows do not have; it is told."""
    for rank in two:
        found = rank["quantized"][way]
        assert found["equal"]
        assert found["traffic"]["all_gather_into_tensor"]["payload"] == TOKENS * HIDDEN * 2
        ((missed, why, _),) = found["passes"][1]["misses"]
        assert missed == op
        assert why.startswith(f"it stays behind the gathering: {reason}")


def test_inductor_runs_it(two: list[Any]) -> None:
    """Its kernels between the collectives, within what it rounds otherwise."""
    for rank in two:
        assert rank["inductor"]["far"] <= 1e-5
        assert rank["inductor"]["passes"][1] == {"name": "sequence_parallelism", "changes": 2, "misses": []}


def test_products_and_collectives_become_one_operation(two: list[Any]) -> None:
    """Run by PyTorch's stand-ins, as a CPU has none: the same bits, and one all-gather left that no product reads."""
    for rank in two:
        found = rank["overlapped"]
        assert found["equal"]
        assert found["traffic"] == {"all_gather_into_tensor": {"calls": 1, "payload": WHOLE, "sent": WHOLE // 2}}
        assert found["graph"].count("fused_matmul_reduce_scatter.default") == 4
        assert found["graph"].count("fused_all_gather_matmul.default") == 3


def test_without_symmetric_memory_the_graph_stays_and_says_why(two: list[Any]) -> None:
    """No kernels for the device, or the group was not made ready."""
    for rank in two:
        for when, reason in (("without", "for tensors on 'cpu'"), ("disabled", "enable_symm_mem_for_group('0')")):
            told = next(each for each in rank["overlapped"][when] if each["name"] == "async_tensor_parallelism")
            assert told["changes"] == 0
            assert [miss[0] for miss in told["misses"]] == ["reduce_scatter_tensor", "all_gather_into_tensor"]
            assert all(reason in miss[1] for miss in told["misses"])


def test_passes_order_themselves(two: list[Any]) -> None:
    """Products are looked for behind sequence parallelism, which was given last."""
    for rank in two:
        names = [each["name"] for each in rank["overlapped"]["without"]]
        assert names == ["functionalization", "sequence_parallelism", "async_tensor_parallelism", "lowering"]
