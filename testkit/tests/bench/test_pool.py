"""Inputs that no cache holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm_ir_testkit.bench.pool import MOST_SETS, UNKNOWN_CACHE, Pool, cpu_cache_bytes

if TYPE_CHECKING:
    from pathlib import Path


def test_the_sets_exceed_the_cache_twice() -> None:
    """As many copies as it takes, no two in one memory, the weight shared."""
    x, weight = torch.randn(4, 64), torch.randn(64)
    pool = Pool.make((x, weight, 1e-5), shared=[1, 2], donated=[0], cache=10_000)
    assert len(pool.sets) == 20
    assert pool.bytes >= 20_000
    assert len({args[0].data_ptr() for args in pool.sets}) == 20
    assert all(args[1] is weight for args in pool.sets)


def test_there_are_limits() -> None:
    """Two sets at least, and no more Python objects than can be told from the work."""
    assert len(Pool.make((torch.randn(1),), [], [], cache=2**30).sets) == MOST_SETS
    assert len(Pool.make((torch.randn(1000),), [], [], cache=1).sets) == 2


def test_refilling_makes_donated_inputs_fresh() -> None:
    """What a call wrote is gone; what it may not write is not touched."""
    pool = Pool.make((torch.ones(3), torch.ones(3)), [], donated=[0], cache=1)
    for args in pool.sets:
        args[0].zero_()
        args[1].zero_()
    pool.refill()
    assert all(bool((args[0] == 1).all()) and bool((args[1] == 0).all()) for args in pool.sets)


def test_the_cache_of_a_cpu_is_read_from_its_files(tmp_path: Path) -> None:
    """The largest counts; a machine that tells nothing gets a guess."""
    assert cpu_cache_bytes(tmp_path) == UNKNOWN_CACHE
    for index, size in enumerate(("32K", "1024K", "32M", "odd")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n", encoding="utf-8")
    assert cpu_cache_bytes(tmp_path) == 32 * 2**20
