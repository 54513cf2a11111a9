"""The grammar of visibility lists, over many lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.platforms.visible import select

ITEMS = ("a", "b", "c")


def by_id(token: str) -> str | None:
    """Find an item by its own name."""
    return token if token in ITEMS else None


@given(st.lists(st.integers(0, 2), unique=True))
def test_indices_select_in_their_order(indices: list[int]) -> None:
    """A list of different indices is exactly those items; an empty text is none."""
    assert select(",".join(map(str, indices)), ITEMS, by_id) == tuple(ITEMS[index] for index in indices)


@given(st.text(alphabet="abc0123456789,- x\u0663", max_size=12))
def test_any_text_gives_different_items_and_never_an_exception(text: str) -> None:
    """Whatever an operator writes, the answer is some of the items, none of them twice."""
    chosen = select(text, ITEMS, by_id)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(ITEMS)


def test_an_index_and_an_identifier_of_one_item_are_the_same_item() -> None:
    """Naming an item twice leaves none, in whatever way it is named."""
    assert select("0,a", ITEMS, by_id) == ()
    assert select("0,b", ITEMS, by_id) == ("a", "b")


def test_no_list_is_every_item() -> None:
    """An unset variable hides nothing."""
    assert select(None, ITEMS, by_id) == ITEMS
