"""A process under a lock: what is not locked does not load, and what is not as locked runs nothing."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir import errors
from vllm_ir.errors import LockMismatch, LockUnreadable, MalformedLock
from vllm_ir.lock.lock_file import write_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from vllm_ir.runtime import Runtime

    from core.tests.lock.conftest import House

    Start = Callable[..., AbstractContextManager[Runtime]]

torch: Any = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

NEEDS_TORCH = True


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Give the path of the lock."""
    return tmp_path / "the.lock"


@pytest.fixture
def start(house: House, file: Path) -> Start:
    """Give what starts a process state under the lock, less what is installed elsewhere."""
    import vllm_ir.ops  # noqa: F401 - registers core's ops before the state is taken apart
    from vllm_ir.isolation import isolated
    from vllm_ir.plugins import load_providers
    from vllm_ir.settings import Settings

    @contextlib.contextmanager
    def begin(**variables: str) -> Iterator[Runtime]:
        """Start one."""
        denied = ",".join(name for name in house.take().unusable)
        told = {"VLLM_IR_LOCK": str(file), "VLLM_IR_PROVIDERS_DISABLED": denied, **variables}
        with isolated(told, Settings(), loader=load_providers) as state:
            yield state

    return begin


def run_op() -> float:
    """Run an op and return an element of its result: 2 from the provider of these tests, 1 from native."""
    from vllm_ir import ops

    return float(ops.rms_norm(torch.ones(2, 8), torch.ones(8), 0.0)[0, 0])


def test_what_is_as_locked_runs(house: House, file: Path, start: Start) -> None:
    """The lock costs nothing but the look."""
    house.install()
    write_lock(house.take().lock, file)
    with start():
        assert run_op() == 2.0


def test_a_changed_file_stops_everything_and_nothing_is_imported(house: House, file: Path, start: Start) -> None:
    """Each attempt anew, native included, with every difference named."""
    package = house.install(files={"lib.so": bytes(100)})
    write_lock(house.take().lock, file)
    (package / "lib.so").write_bytes(bytes(50))
    (package / "hooks.py").unlink()
    with start() as state:
        for _ in range(2):
            with pytest.raises(LockMismatch) as caught:
                run_op()
            assert [each.partition(":")[0] for each in caught.value.differences] == [
                "distribution dist-fast, file dist_fast/hooks.py",
                "distribution dist-fast, file dist_fast/lib.so",
            ]
        with pytest.raises(LockMismatch):
            import vllm_ir

            vllm_ir.load_providers()
        assert all(set(op.impls) <= {"native", "unfused"} for op in state.registry)
    assert package.name not in sys.modules


def test_a_truncated_library_stops_before_it_can_crash(house: House, file: Path, start: Start) -> None:
    """The size tells at once."""
    package = house.install(files={"lib.so": bytes(10_000)})
    write_lock(house.take().lock, file)
    (package / "lib.so").write_bytes(bytes(5_000))
    with start(), pytest.raises(LockMismatch, match=r"lib\.so: locked 10000 bytes, found 5000 bytes\. Reinstall it"):
        run_op()


def test_a_planted_file_stops_before_it_runs(house: House, file: Path, start: Start) -> None:
    """Python would import the folder in place of the locked module of that name."""
    package = house.install()
    write_lock(house.take().lock, file)
    (package / "hooks").mkdir()
    (package / "hooks" / "__init__.py").write_text("raise SystemExit('it runs')", encoding="utf-8")
    with start(), pytest.raises(LockMismatch, match=r"file dist_fast/hooks/__init__\.py: locked nothing, found a file"):
        run_op()
    assert package.name not in sys.modules


def test_an_uninstalled_and_an_upgraded_provider_stop(house: House, file: Path, start: Start) -> None:
    """Whatever the cause, the same error with the same lines as `check`."""
    house.install()
    write_lock(house.take().lock, file)
    house.uninstall()
    with start(), pytest.raises(LockMismatch, match=r"dist-fast: locked 1\.0, found not installed"):
        run_op()
    house.install(version="2.0")
    with start(), pytest.raises(LockMismatch, match=r"dist-fast: locked 1\.0, found 2\.0"):
        run_op()


def test_what_is_not_in_the_lock_is_not_loaded_and_recorded_so(house: House, file: Path, start: Start) -> None:
    """It cannot be named, and the rest runs."""
    write_lock(house.take().lock, file)
    package = house.install()
    with start() as state:
        import vllm_ir

        assert run_op() == 1.0
        (record,) = [each for each in vllm_ir.providers() if each.name == "fast"]
        assert record.failure is not None
        assert (record.failure.kind, record.failure.fault) == ("not in the lock", False)
        assert str(file) in record.failure.reason
        with pytest.raises(errors.UnusableProvider, match="is not in VLLM_IR_LOCK="):
            state.registry.get("rms_norm").set_default(["fast"])
    assert package.name not in sys.modules


def test_a_twin_that_is_not_in_the_lock_is_no_conflict(house: House, file: Path, start: Start) -> None:
    """Only one of the two is loaded, so nobody has to decide."""
    house.install()
    write_lock(house.take().lock, file)
    house.install(name="dist-twin")
    with start():
        assert run_op() == 2.0


def test_an_order_of_a_variable_that_was_not_locked_stops(house: House, file: Path, start: Start) -> None:
    """With the same variable it runs."""
    house.install()
    write_lock(house.take(variables={"VLLM_IR_OP_PRIORITY": "rms_norm=native"}).lock, file)
    with start(), pytest.raises(LockMismatch, match="op rms_norm, eager, on cpu: locked native, found fast, native"):
        run_op()
    with start(VLLM_IR_OP_PRIORITY="rms_norm=native"):
        assert run_op() == 1.0


def test_what_only_loading_shows_stops_too(house: House, file: Path, start: Start) -> None:
    """A provider whose implementation says at run time that it cannot run here would fall back without a word."""
    house.install(supported=False)
    write_lock(house.take().lock, file)
    with start(), pytest.raises(LockMismatch, match="op rms_norm, eager: locked fast, native, found native"):
        run_op()


def test_a_program_may_not_change_what_is_locked(house: House, file: Path, start: Start) -> None:
    """Defaults, flags, scopes and orders of compiled graphs are held to the lock; the same order is no change."""
    from vllm_ir import IrOpPriorityConfig
    from vllm_ir.compile.plan import Plan
    from vllm_ir.priority import Layer, Wish

    house.install()
    write_lock(house.take().lock, file)
    with start() as state:
        op = state.registry.get("rms_norm")
        assert run_op() == 2.0
        with (
            pytest.raises(LockMismatch, match=r"found native.*Neither a program nor a flag may"),
            op.set_priority(["native"]),
        ):
            run_op()
        with op.set_priority(["fast"]):
            assert run_op() == 2.0
        args = (torch.ones(2, 8), torch.ones(8), 0.0)
        assert (op.dispatch(*args).provider, op.explain(*args).selected) == ("fast", "fast")
        op.set_default(["native"])
        with pytest.raises(LockMismatch, match="op rms_norm, eager: locked fast, native, found native"):
            op.dispatch(*args)
        told = op.explain(*args)
        assert (told.selected, [each.accepted for each in told.verdicts]) == (None, [False] * len(told.verdicts))
        assert (
            told.verdicts[0].reason
            == f"VLLM_IR_LOCK={file} locks fast, native, and this order is another: a call stops"
        )
        assert op.explain(*args, compiling=True).selected == "native"
        op.set_default(["fast"])
        assert (run_op(), op.dispatch(*args).provider, op.explain(*args).selected) == (2.0, "fast", "fast")
        assert op.explain(*args, compiling=True).selected is None
        op.set_default([])
        assert Plan.take() is not None
        with pytest.raises(LockMismatch, match="op rms_norm, compiling: locked native, found fast, native"):
            Plan.take(extra={"rms_norm": Wish(Layer.SET_PRIORITY, ("fast",))})
        IrOpPriorityConfig(rms_norm=["native"]).apply(Layer.COMMAND_LINE)
        with pytest.raises(LockMismatch, match="op rms_norm, eager: locked fast, native, found native"):
            run_op()


def test_a_platform_that_the_lock_does_not_have_stops(house: House, file: Path, start: Start) -> None:
    """A lock for another machine holds nothing here."""
    from vllm_ir.platforms import named_platform

    write_lock(house.take(named_platform("cuda:9.0")).lock, file)
    with start(), pytest.raises(LockMismatch, match=r"platform: locked cuda:9\.0, found "):
        run_op()


def test_a_lock_without_a_digest_is_never_accepted(house: House, file: Path, start: Start) -> None:
    """--allow-editable is for reading and for `check`."""
    house.install()
    house.record().unlink()
    write_lock(house.take().lock, file)
    with start(), pytest.raises(LockMismatch, match="dist-fast: locked no digest, found none: its installer left no"):
        run_op()


def test_an_unreadable_lock_stops(house: House, file: Path, start: Start) -> None:
    """A mistyped path must not mean that nothing is enforced."""
    assert house.path.is_dir()
    with start(), pytest.raises(LockUnreadable, match="cannot be read: no such file"):
        run_op()
    file.write_text("lock-version = 1", encoding="utf-8")
    with start(), pytest.raises(MalformedLock, match="core is missing"):
        run_op()
