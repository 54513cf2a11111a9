"""How wide launches are: by rule, by what was found on this machine, and never so that a kernel would be wrong."""

from __future__ import annotations

import json
import os
import pickle
import re
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir_provider_triton import configuration, tuned
from vllm_ir_provider_triton.configuration import MACHINES, Shape, choose, choose_heads, fits, machine
from vllm_ir_provider_triton.errors import UnusableTable

if TYPE_CHECKING:
    from pathlib import Path

SIZES = (1, 7, 64, 65, 128, 576, 1000, 2048, 4096, 5120, 8192, 11008, 16384, 16385, 10**6, 2**30)
MANY = {"few": False}
TWICE = ("one test", "the next test")


@pytest.fixture(autouse=True)
def table(tables: Path) -> Path:
    """Give where this machine's table lies."""
    return tables / "triton" / "launch.json"


def forget() -> None:
    """Forget tables and shapes."""
    for each in (tuned.tables, choose, choose_heads):
        each.cache_clear()


@pytest.mark.parametrize("arch", [*MACHINES, "sm_89", "gfx90a", "gfx1100"])
def test_every_rule_may_be_launched(arch: str) -> None:
    """For every size: a lane for every element, so that nothing is read by two threads and written by one."""
    for number in (2, 4):
        for few in (False, True):
            for size in SIZES:
                for kind in ("norm", "fused", "gate"):
                    shape = choose(kind, arch, size, number, few=few)
                    assert fits(shape, arch, size if kind != "gate" else 1), (kind, size, shape)
                    assert shape.block & (shape.block - 1) == 0
                    assert shape.block >= min(size, configuration.LOOP_BLOCK) or kind == "gate"
        for pairs in (1, 8, 32, 64, 128, 256):
            for heads in (1, 8, 32, 128):
                shape = choose_heads(arch, pairs, heads, number)
                assert fits(shape, arch, pairs), (pairs, heads, shape)
                assert shape.block >= pairs


def test_a_warp_of_gfx9_has_64_lanes() -> None:
    """Others have 32; an architecture that is not in the table is taken for one that is."""
    assert [machine(arch).lanes for arch in ("gfx90a", "gfx942", "gfx1100", "sm_89", "sm_120")] == [64, 64, 32, 32, 32]


def test_few_rows_may_have_more_warps_and_the_block_goes_by_the_row_alone() -> None:
    """So that the order of a batch-invariant sum never follows the batch."""
    many, few = (choose("norm", "sm_90", 4096, 2, few=few) for few in (False, True))
    assert few.warps > many.warps
    assert few.block == many.block


def test_what_was_found_here_stands_before_the_rule(table: Path) -> None:
    """For its architecture, kind, size, dtype and number of rows, and for nothing else."""
    rule = choose("norm", "sm_90", 4096, 2, **MANY)
    tuned.write(
        table, "sm_90", {tuned.key("norm", 4096, 2, few=False): (1, 4), tuned.key("rotary", 64, 2, few=False): (2, 1)}
    )
    tuned.write(table, "sm_80", {tuned.key("gate", 4096, 2, few=True): (1, 2)})
    forget()
    assert choose("norm", "sm_90", 4096, 2, **MANY) == Shape(1, 4096, 4) != rule
    assert choose("norm", "sm_90", 4000, 2, **MANY) == Shape(1, 4096, 4)
    assert choose("norm", "sm_80", 4096, 2, **MANY) == rule
    assert choose("fused", "sm_90", 4096, 2, **MANY) == rule
    assert choose("norm", "sm_90", 4096, 4, **MANY).warps != 4
    assert choose("gate", "sm_80", 4096, 2, few=True).warps == 2
    assert choose_heads("sm_90", 64, 32, 2) == Shape(2, 64, 1)
    assert (table.stat().st_mode & 0o777, table.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("test", TWICE)
def test_what_a_test_tunes_the_next_does_not_see(table: Path, test: str) -> None:
    """Since a shape is chosen once a process, kernels would be compiled with it and need other registers."""
    assert test in TWICE
    assert choose("norm", "sm_90", 1001, 2, **MANY) == configuration.by_rule("norm", "sm_90", 1001, 2, **MANY)
    tuned.write(table, "sm_90", {tuned.key("norm", 1024, 2, few=False): (1, 2)})
    configuration.forget()
    assert choose("norm", "sm_90", 1001, 2, **MANY).warps == 2


@pytest.mark.parametrize("pair", [(1, 64), (64, 8), (3, 8), (32, 1024), (1, 3)])
def test_an_entry_that_would_make_a_kernel_wrong_is_passed_over(table: Path, pair: tuple[int, int]) -> None:
    """More lanes than elements, more threads than a block has, rows that are no power of two."""
    rule = choose("norm", "sm_90", 64, 2, **MANY)
    tuned.write(table, "sm_90", {tuned.key("norm", 64, 2, few=False): pair})
    forget()
    assert choose("norm", "sm_90", 64, 2, **MANY) == rule


BROKEN: dict[str, Any] = {
    "no JSON": "{",
    "a deep one": "[" * 200_000,
    "a list": [],
    "another schema": {"schema": 2, "launches": {}},
    "no table": {"schema": 1, "launches": {"sm_90": 3}},
    "three numbers": {"schema": 1, "launches": {"sm_90": {"norm 64x2": [1, 2, 3]}}},
    "words": {"schema": 1, "launches": {"sm_90": {"norm 64x2": ["1", "2"]}}},
    "truth": {"schema": 1, "launches": {"sm_90": {"norm 64x2": [True, True]}}},
    "zero": {"schema": 1, "launches": {"sm_90": {"norm 64x2": [0, 4]}}},
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_table_that_cannot_be_read_is_told_once_and_the_rule_stands(
    table: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is not written over. It is logged, since a warning may be an error, and would be one at every call."""
    table.parent.mkdir()
    content = BROKEN[name]
    table.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    rule = configuration.by_rule("norm", "sm_90", 4096, 2, **MANY)
    for _ in range(2):
        assert choose("norm", "sm_90", 4096, 2, **MANY) == rule
        choose("gate", "sm_90", 4096, 2, **MANY)
    (told,) = caplog.messages
    assert re.search(f"{table} is not used, since .* The built-in rule stands", told)
    before = table.read_bytes()
    with pytest.raises(ValueError, match=r"no|Expecting|nested"):
        tuned.write(table, "sm_90", {})
    assert table.read_bytes() == before


def test_what_is_no_file_is_not_opened(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pipe would make the call wait for somebody who writes it."""
    table.parent.mkdir()
    os.mkfifo(table)
    assert choose("norm", "sm_90", 4096, 2, **MANY) == configuration.by_rule("norm", "sm_90", 4096, 2, **MANY)
    assert "it is no regular file" in caplog.text
    table.unlink()
    table.mkdir()
    with pytest.raises(ValueError, match="no regular file"):
        tuned.read(table)


def test_the_sentence_of_a_table_survives_pickling() -> None:
    """As every error does."""
    error = UnusableTable(path="a/launch.json", problem="it is no table")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (str(again), again.path, again.problem) == (str(error), "a/launch.json", "it is no table")


def test_a_table_that_others_can_write_is_not_read(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor one behind a link, nor one that is too long."""
    tuned.write(table, "sm_90", {tuned.key("norm", 4096, 2, few=False): (1, 4)})
    table.chmod(0o666)
    assert choose("norm", "sm_90", 4096, 2, **MANY).warps != 4
    assert "not this user's alone to write" in caplog.text
    table.chmod(0o600)
    aside = table.with_name("aside")
    table.rename(aside)
    table.symlink_to(aside)
    with pytest.raises(ValueError, match="not this user's alone"):
        tuned.read(table)
    aside.write_text(" " * (tuned.MOST_BYTES + 1), encoding="utf-8")
    with pytest.raises(ValueError, match="bytes"):
        tuned.read(aside)
