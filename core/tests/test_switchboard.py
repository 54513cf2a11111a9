"""Threads and tasks that hold different scopes at once over one op never see each other's, by any way of calling."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir import errors
from vllm_ir.isolation import isolated
from vllm_ir.landscape import Landscape
from vllm_ir.runtime import current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.op import IrOpInplace
    from vllm_ir.runtime import Runtime

NUMBER = 12
TIMEOUT = 60


def shared(x: torch.Tensor) -> torch.Tensor:
    """Return x times minus one: the mark of native."""
    return x * -1


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Let threads change places some thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def op(state: Runtime) -> IrOpInplace:
    """Give an op with as many marked implementations as there will be threads; every other one writes in place."""
    assert state is not None
    made = vllm_ir.register_op(name="shared", allow_inplace=True)(shared)
    for number in range(NUMBER):
        mark(made, number)
    return made


def mark(op: IrOpInplace, number: int) -> None:
    """Register an implementation whose result is a number."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        """Return the number."""
        return torch.full_like(x, float(number))

    def writing(x: torch.Tensor) -> torch.Tensor:
        """Write the number."""
        return x.fill_(float(number))

    op.register_impl(f"p{number}", inplace=bool(number % 2))(writing if number % 2 else kernel)


def ways(op: IrOpInplace) -> list[Callable[[torch.Tensor], Any]]:
    """Return every way to call an op eagerly."""
    return [op, op.torch_op, op.maybe_inplace, op.maybe_inplace.torch_op]


def seen(op: IrOpInplace) -> set[float]:
    """Return the marks that all ways of calling see."""
    return {float(way(torch.ones(1)).item()) for way in ways(op)}


def in_threads(target: Callable[[int], object], number: int = NUMBER) -> list[object]:
    """Run a function in some threads that begin together, and return its results; an exception in one is raised."""
    barrier = threading.Barrier(number)

    def run(index: int) -> object:
        """Wait for the others, then run."""
        barrier.wait(TIMEOUT)
        return target(index)

    with ThreadPoolExecutor(number) as pool:
        return [future.result(TIMEOUT) for future in [pool.submit(run, index) for index in range(number)]]


def is_quiet(op: IrOpInplace, state: Runtime) -> bool:
    """Tell whether calls have stopped reading the context, at the latest with the first after the last scope's end."""
    gc.collect()
    op(torch.ones(1))
    board = state.board(op)
    return not board.scopes and board.default._globals["_ir_chain"].__name__ != "scoped"


def test_threads_hold_scopes_of_their_own(op: IrOpInplace, state: Runtime) -> None:
    """Each thread sees its own providers and nobody else's, nested scopes too; afterwards everybody sees native."""

    def work(index: int) -> None:
        """Open and close scopes, and look."""
        for turn in range(15):
            assert seen(op) == {-1.0}
            with op.set_priority(f"p{index}"):
                assert seen(op) == {float(index)}
                other = (index + turn) % NUMBER
                with op.set_priority(f"p{other}"):
                    assert seen(op) == {float(other)}
                    assert op.dispatch(torch.ones(1)).provider == f"p{other}"
                    assert op.get_priority() == [f"p{other}"]
                assert seen(op) == {float(index)}

    in_threads(work)
    assert seen(op) == {-1.0}
    assert is_quiet(op, state)


def test_a_thread_sees_no_scope_of_its_starter(op: IrOpInplace) -> None:
    """A new thread begins with the process's order."""
    with op.set_priority("p3"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(seen, op).result(TIMEOUT) == {-1.0}
        assert seen(op) == {3.0}


def test_tasks_hold_scopes_of_their_own(op: IrOpInplace, state: Runtime) -> None:
    """Tasks of one thread that wait inside their scopes keep them apart."""

    async def work(index: int) -> None:
        """Open a scope, let the others run, and look."""
        with op.set_priority(f"p{index}"):
            for _ in range(10):
                await asyncio.sleep(0)
                assert seen(op) == {float(index)}
        await asyncio.sleep(0)
        assert seen(op) == {-1.0}

    async def main() -> None:
        """Run all at once."""
        await asyncio.gather(*(work(index) for index in range(NUMBER)))

    asyncio.run(main())
    assert seen(op) == {-1.0}
    assert is_quiet(op, state)


def test_a_task_that_outlives_the_scope_it_was_made_in(op: IrOpInplace, state: Runtime) -> None:
    """It has a copy of the context, so it keeps the scope, also through a scope of its own; its maker does not."""

    async def late(closed: asyncio.Event) -> list[set[float]]:
        """Look before and after the maker has closed the scope."""
        looks = [seen(op)]
        await closed.wait()
        looks.append(seen(op))
        with op.set_priority("p4"):
            looks.append(seen(op))
        looks.append(seen(op))
        return looks

    async def main() -> list[set[float]]:
        """Make the task in a scope and close that."""
        closed = asyncio.Event()
        with op.set_priority("p2"):
            task = asyncio.create_task(late(closed))
            await asyncio.sleep(0)
        assert seen(op) == {-1.0}
        closed.set()
        return await task

    assert asyncio.run(main()) == [{2.0}, {2.0}, {4.0}, {2.0}]
    assert seen(op) == {-1.0}
    assert is_quiet(op, state)


def test_threads_with_loops_of_tasks(op: IrOpInplace, state: Runtime) -> None:
    """Both at once."""

    async def work(index: int) -> None:
        """Look from inside a scope."""
        with op.set_priority(f"p{index}"):
            for _ in range(5):
                await asyncio.sleep(0)
                assert seen(op) == {float(index)}

    async def main(index: int) -> None:
        """Run some tasks in one thread's loop."""
        await asyncio.gather(*(work((index + step) % NUMBER) for step in range(4)))

    in_threads(lambda index: asyncio.run(main(index)), 6)
    assert is_quiet(op, state)


def test_a_compiled_function_runs_the_scope_of_whoever_calls_it(op: IrOpInplace, state: Runtime) -> None:
    """The graph holds the op, not a kernel: one compilation, and each thread's call sees its own scope."""
    torch._dynamo.reset()
    frames = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: op(x) + 100.0, backend=frames, fullgraph=True)
    assert compiled(torch.ones(1)).item() == 99.0

    def work(index: int) -> None:
        """Call in a scope and outside of it."""
        for _ in range(5):
            with op.set_priority(f"p{index}"):
                assert compiled(torch.ones(1)).item() == 100.0 + index
            assert compiled(torch.ones(1)).item() == 99.0

    in_threads(work, 6)
    assert frames.frame_count == 1
    assert is_quiet(op, state)


def test_scopes_while_another_thread_registers(op: IrOpInplace, state: Runtime) -> None:
    """Registering makes every open scope's chain anew and drops none; what is new is there at once."""
    stop = threading.Event()

    def work(index: int) -> None:
        """Look from inside scopes until the other thread has done."""
        while not stop.is_set():
            with op.set_priority(f"p{index}"):
                assert seen(op) == {float(index)}
            assert seen(op) == {-1.0}

    def register(_: int) -> None:
        """Register many implementations."""
        try:
            for number in range(100, 125):
                mark(op, number)
                with op.set_priority(f"p{number}"):
                    assert seen(op) == {float(number)}
        finally:
            stop.set()

    in_threads(lambda index: register(index) if index == 0 else work(index), 4)
    assert len(op.impls) == 1 + NUMBER + 25
    assert is_quiet(op, state)


def test_a_default_set_in_another_thread(op: IrOpInplace, state: Runtime) -> None:
    """It holds for everybody at the next call, and behind the scopes that are open."""
    with op.set_priority("p1"), ThreadPoolExecutor(1) as pool:
        pool.submit(op.set_default, ["p5"]).result(TIMEOUT)
        assert seen(op) == {1.0}
        assert [v.provider for v in op.explain().verdicts if v.layer] == ["p1", "p5", "native"]
        assert pool.submit(seen, op).result(TIMEOUT) == {5.0}
    assert seen(op) == {5.0}
    assert is_quiet(op, state)


def test_defaults_and_scopes_and_calls_from_everywhere(op: IrOpInplace, state: Runtime) -> None:
    """Under steady change a call outside of scopes sees one of the defaults, and one inside sees its own."""
    op.set_default("p0")

    def work(index: int) -> None:
        """Do one of three things, many times."""
        for turn in range(40):
            if index % 3 == 0:
                op.set_default([f"p{(turn * 7 + index) % 3}"])
            elif index % 3 == 1:
                with op.set_priority(f"p{index}"):
                    assert seen(op) == {float(index)}
            else:
                assert seen(op) <= {0.0, 1.0, 2.0}

    in_threads(work, 9)
    assert is_quiet(op, state)


def test_the_first_call_from_sixteen_threads_loads_once() -> None:
    """Whoever comes first discovers; the others wait, and all run what was found."""
    loads: list[int] = []
    landscape = Landscape(provider_defaults={False: {"shared": ("p7",)}})

    def discover() -> bool:
        """Take a while, then adopt what was found."""
        loads.append(threading.get_ident())
        time.sleep(0.2)
        mark(current().registry.get("shared"), 7)  # type: ignore[arg-type]
        current().adopt(landscape)
        return True

    with isolated(loader=lambda: current().discovery.get(discover)):
        op = vllm_ir.register_op(name="shared", allow_inplace=True)(shared)
        results = in_threads(lambda _: seen(op), 16)
    assert results == [{7.0}] * 16
    assert len(loads) == 1


def test_a_loader_that_fails_is_tried_again() -> None:
    """The first call raises what discovery raised, and the next one discovers."""
    attempts: list[int] = []

    def discover() -> bool:
        """Fail once."""
        attempts.append(1)
        if len(attempts) == 1:
            msg = "no such folder"
            raise OSError(msg)
        return True

    with isolated(loader=lambda: current().discovery.get(discover)):
        op = vllm_ir.register_op(name="shared", allow_inplace=True)(shared)
        with pytest.raises(OSError, match="no such folder"):
            op(torch.ones(1))
        assert seen(op) == {-1.0}
    assert len(attempts) == 2


def test_a_wrong_order_is_an_error_in_every_thread() -> None:
    """Nobody's first call slips through while another one raises."""
    with isolated({"VLLM_IR_OP_PRIORITY": "shared=nope"}):
        op = vllm_ir.register_op(name="shared", allow_inplace=True)(shared)

        def work(_: int) -> str:
            """Call."""
            with pytest.raises(errors.UnknownProvider) as caught:
                op(torch.ones(1))
            return caught.value.provider

        assert in_threads(work, 8) == ["nope"] * 8


def test_a_graph_without_torch_ops_follows_the_order(op: IrOpInplace) -> None:
    """Where tracers are led into the kernel, a new default is traced anew, and a scope is asked at each call."""
    torch._dynamo.reset()
    with vllm_ir.enable_torch_wrap(enable=False):
        compiled = torch.compile(lambda x: op(x) + 100.0, backend="aot_eager", fullgraph=True)
        ones = torch.ones(1)
        seen_by_graph = [compiled(ones).item()]
        for name in ("p2", "p4"):
            op.set_default(name)
            seen_by_graph.append(compiled(ones).item())
        with op.set_priority("p6"):
            seen_by_graph.append(compiled(ones).item())
            with op.set_priority("p8"):
                seen_by_graph.append(compiled(ones).item())
        seen_by_graph.append(compiled(ones).item())
    assert seen_by_graph == [99.0, 102.0, 104.0, 106.0, 108.0, 104.0]


def test_modes_without_torch_ops_see_the_scope(op: IrOpInplace) -> None:
    """A dispatch mode is led into the kernel of the scope that is open."""
    with vllm_ir.enable_torch_wrap(enable=False), op.set_priority("p6"):
        graph = make_fx(op)(torch.ones(1))
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.full_like.default
    ]
    assert graph(torch.ones(1)).item() == 6.0
