"""The compiled module: instruction sets agree, threads and forks change nothing, and a wrong call is an error."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_provider_cpu_c import kernels
from vllm_ir_provider_cpu_c.library import native as compiled
from vllm_ir_provider_cpu_c.predicates import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

BIG = 600  # rows of 4096: enough for threads


def results(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Return what all kernels but rotary give."""
    out, total = kernels.fused_add_rms_norm.impl_fn(x.clone(), x.flip(0).contiguous(), weight, 1e-6)
    gates = [compiled.gate(x, kind) for kind in range(3)]
    return [kernels.rms_norm.impl_fn(x, weight, 1e-6), out, total, *gates]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_instruction_set_gives_the_bits_of_the_scalar_one(
    dtype: torch.dtype, same_bits: Callable[[Any, Any], None]
) -> None:
    """The scalar path is the reference; over random bit patterns, so that every exponent occurs."""
    whole = torch.int32 if dtype == torch.float32 else torch.int16
    info = torch.iinfo(whole)
    x = torch.randint(info.min, info.max, (64, 1028), dtype=whole).view(dtype)
    weight = torch.randn(1028).to(dtype)
    compiled.use_isa("scalar")
    expected = results(x, weight)
    for name in compiled.isas():
        compiled.use_isa(name)
        for got, wanted in zip(results(x, weight), expected, strict=True):
            same_bits(got, wanted)


def test_the_best_instruction_set_is_taken_unless_told_otherwise() -> None:
    """The scalar path is last, and always there; an unknown name is an error that names it."""
    assert compiled.isa() == compiled.isas()[0]
    assert compiled.isas()[-1] == "scalar"
    with pytest.raises(ValueError, match="'mmx'"):
        compiled.use_isa("mmx")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_number_of_threads_changes_no_bit(
    dtype: torch.dtype, threads: Callable[[int], AbstractContextManager[None]]
) -> None:
    """One thread, two, and more than there are cores."""
    x, weight = torch.randn(BIG, 4096).to(dtype), torch.randn(4096).to(dtype)
    with threads(1):
        expected = results(x, weight)
    for count in (2, 5):
        with threads(count):
            for got, wanted in zip(results(x, weight), expected, strict=True):
                assert torch.equal(got, wanted)


def test_outputs_beyond_the_cache_are_the_same() -> None:
    """What is stored past the cache is what is stored into it."""
    x, weight = torch.randn(2600, 4096), torch.randn(4096)
    got = kernels.rms_norm.impl_fn(x, weight, 1e-6)
    assert torch.equal(got[:4], kernels.rms_norm.impl_fn(x[:4], weight, 1e-6))
    assert torch.equal(got[-4:], kernels.rms_norm.impl_fn(x[-4:], weight, 1e-6))


def test_kernels_run_in_several_python_threads_at_once() -> None:
    """The interpreter lock is released in large calls; results stay apart."""
    x, weight = torch.randn(BIG, 4096), torch.randn(4096)
    expected = kernels.rms_norm.impl_fn(x, weight, 1e-6)
    wrong: list[int] = []

    def work(number: int) -> None:
        """Run the kernel a few times."""
        got = [kernels.rms_norm.impl_fn(x, weight, 1e-6) for _ in range(5)]
        wrong.extend(number for one in got if not torch.equal(one, expected))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_a_forked_child_computes_after_its_parent_had_threads() -> None:
    """An OpenMP team does not survive a fork, and a child must not wait for it."""
    code = (
        "import os, torch\n"
        "torch.set_num_threads(2)\n"
        "from vllm_ir_provider_cpu_c import kernels\n"
        "x, weight = torch.randn(600, 4096), torch.randn(4096)\n"
        "before = kernels.rms_norm.impl_fn(x, weight, 1e-6)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    same = bool((kernels.rms_norm.impl_fn(x, weight, 1e-6).numpy() == before.numpy()).all())\n"
        "    os._exit(0 if same else 3)\n"
        "_, status = os.waitpid(child, 0)\n"
        "print(os.waitstatus_to_exitcode(status))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "0", done.stderr


def test_only_one_openmp_runtime_is_loaded() -> None:
    """A second one would be a second team of threads on the same cores."""
    if not os.path.exists("/proc/self/maps"):  # noqa: PTH110 - a question to the kernel, not to a file system
        pytest.skip("no list of loaded libraries here")
    assert compiled.openmp()
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123 - the same
        loaded = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line or "libiomp" in line}
    assert len(loaded) == 1, loaded


def test_subnormals_are_flushed_on_all_threads_or_on_none(
    threads: Callable[[int], AbstractContextManager[None]],
) -> None:
    """A thread that was there before the mode was set follows the caller's mode."""
    x = torch.full((BIG, 4096), 1e-39)
    with threads(2):
        compiled.gate(x, 0)
        torch.set_flush_denormal(True)
        try:
            flushed = compiled.gate(x, 0)
        finally:
            torch.set_flush_denormal(False)
        kept = compiled.gate(x, 0)
    assert flushed.unique().numel() == 1
    assert kept.unique().numel() == 1


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("rms_norm", (torch.ones(2, 8).double(), None, 1e-6, None), ValueError),
        ("rms_norm", (torch.ones(2, 8), torch.ones(7), 1e-6, None), ValueError),
        ("rms_norm", (torch.ones(2, 8), None, 1e-6, 9), ValueError),
        ("rms_norm", (torch.ones(8, 2).T, None, 1e-6, None), ValueError),
        ("rms_norm", (torch.ones(2, 8), None, "much", None), TypeError),
        ("rms_norm", (torch.ones(2, 8),), TypeError),
        ("gate", (torch.ones(2, 7), 0), ValueError),
        ("gate", (torch.ones(2, 8), 9), TypeError),
        ("fused_add_rms_norm", (torch.ones(2, 8), torch.ones(1, 8), None, 1e-6, None, False), ValueError),
        (
            "rotary_embedding",
            (
                torch.zeros(2, dtype=torch.int64),
                torch.ones(3, 8),
                torch.ones(3, 8),
                8,
                8,
                torch.ones(4, 8),
                True,
                False,
            ),
            ValueError,
        ),
    ],
)
def test_a_call_that_no_predicate_lets_through_is_an_error(
    name: str, args: tuple[Any, ...], error: type[Exception]
) -> None:
    """The compiled module checks for itself: a wrong call never reaches memory."""
    with pytest.raises(error):
        getattr(compiled, name)(*args)
