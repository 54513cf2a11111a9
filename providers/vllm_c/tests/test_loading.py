"""Loading and starting, with a driver that only writes down what it is asked: devices, streams, captures, errors."""

from __future__ import annotations

import ctypes
import pickle
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_provider_vllm_c import cubins, geometry, hooks, loading
from vllm_ir_provider_vllm_c.compiling import Cubin
from vllm_ir_provider_vllm_c.errors import CannotLoad, CannotStart, KernelError, NotWarm
from vllm_ir_provider_vllm_c.launcher import CupyLauncher
from vllm_ir_provider_vllm_c.variants import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_ir_provider_vllm_c.geometry import Launch
    from vllm_ir_provider_vllm_c.variants import Program


class Driver:
    """Two devices of one architecture, and what was asked of them."""

    def __init__(self) -> None:
        self.device = 0
        self.capturing: set[int] = set()
        self.refuses = False
        self.fetched: list[tuple[str, str]] = []
        self.entered: list[int] = []
        self.loaded: list[int] = []
        self.started: list[tuple[int, int, int]] = []

    def enter(self, device: int) -> None:
        """Write down which device is entered."""
        self.entered.append(device)

    def load(self, code: bytes) -> int:
        """Load a cubin into the current context and return the module's handle."""
        if self.refuses:
            msg = "CUDA_ERROR_NO_BINARY_FOR_GPU"
            raise RuntimeError(msg)
        self.loaded.append(self.device)
        return len(code)

    def find(self, module: int, name: str) -> int:
        """Return the handle of a kernel in a module."""
        return module + len(name)

    def start(self, kernel: int, launch: Launch, stream: int) -> None:
        """Write down device, stream and blocks."""
        del kernel
        if self.refuses:
            msg = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
            raise RuntimeError(msg)
        self.started.append((self.device, stream, launch.blocks))

    def fetch(self, program: Program, arch: str) -> Cubin:
        """Return a cubin."""
        self.fetched.append((program.name, arch))
        return Cubin(b"code", {expression: f"_Z{expression}" for expression in program.expressions})

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make another device current for a while."""
        before, self.device = self.device, device
        yield
        self.device = before


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Put the driver in the place of CuPy's and torch's."""
    made = Driver()
    monkeypatch.setattr(loading, "_LOADED", {})
    monkeypatch.setattr(loading, "_THREAD", loading._Thread())
    monkeypatch.setattr(loading, "launcher", lambda: made)
    monkeypatch.setattr(cubins, "fetch", made.fetch)
    for name, function in {
        "get_device_capability": lambda _: (9, 0),
        "current_device": lambda: made.device,
        "is_current_stream_capturing": lambda: made.device in made.capturing,
        "device": made.on,
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 700 + index, raising=False)
    return made


def launch(rows: int = 3) -> Launch:
    """Return a launch."""
    x = torch.empty(1, 64).expand(rows, 64)
    return geometry.norm("rms_norm", x, None, None, 1e-6, None, x, None)


def test_a_program_is_loaded_once_a_device_and_started_on_the_current_stream(driver: Driver) -> None:
    """Of the tensor's device, also where another one is current, which it stays."""
    for index in (0, 0, 1, 1):
        loading.run(launch(), torch.device("cuda", index))
    assert driver.fetched == [("norm_float32", "sm_90")] * 2
    assert driver.loaded == [0, 1]
    assert driver.started == [(0, 700, 1), (0, 700, 1), (1, 701, 1), (1, 701, 1)]
    assert driver.device == 0


def test_a_new_thread_gets_a_context_once(driver: Driver) -> None:
    """A thread that has done nothing with CUDA has none, and the driver would refuse the launch."""
    loading.run(launch(), torch.device("cuda", 0))
    driver.entered.clear()

    def twice() -> None:
        """Run two launches."""
        for _ in range(2):
            loading.run(launch(), torch.device("cuda", 0))

    thread = threading.Thread(target=twice)
    thread.start()
    thread.join()
    assert driver.entered == [0]
    assert len(driver.started) == 3


def test_nothing_is_loaded_or_started_for_no_rows(driver: Driver) -> None:
    """Zero tokens cost no launch."""
    loading.run(launch(0), torch.device("cuda", 0))
    assert (driver.fetched, driver.started) == ([], [])


def test_a_cold_kernel_in_a_capture_is_an_error_that_says_how_to_warm_up(driver: Driver) -> None:
    """Nothing is compiled or loaded then; a warm kernel is started as ever."""
    driver.capturing = {0}
    with pytest.raises(NotWarm, match=r"norm_float32 is not loaded on cuda:1.*vllm_ir\.warm_up\('cuda:1'\)"):
        loading.run(launch(), torch.device("cuda", 1))
    assert driver.fetched == []
    driver.capturing = set()
    loading.warm_up(torch.device("cuda", 1), [torch.float32])
    driver.capturing = {0, 1}
    loading.run(launch(), torch.device("cuda", 1))
    assert driver.started == [(1, 701, 1)]


@pytest.mark.parametrize("captured", [0, 1])
def test_a_capture_on_either_device_is_seen(driver: Driver, captured: int) -> None:
    """On the tensor's device and on the current one; a third is none of this thread's concern."""
    driver.capturing = {captured}
    with pytest.raises(NotWarm, match="cuda:1"):
        loading.run(launch(), torch.device("cuda", 1))
    assert (driver.fetched, driver.device) == ([], 0)
    driver.capturing = {2}
    loading.run(launch(), torch.device("cuda", 1))
    assert driver.started == [(1, 701, 1)]


def test_warming_up_loads_what_is_asked_for_once(driver: Driver) -> None:
    """All dtypes for none named, dtypes without kernels left out, other devices than CUDA's not touched."""
    loading.warm_up(torch.device("cpu"), [])
    loading.warm_up(None, [torch.float64])
    assert driver.fetched == []
    loading.warm_up(None, [torch.bfloat16])
    assert [name for name, _ in driver.fetched] == [each.name for each in PROGRAMS if each.dtype == "bfloat16"]
    hooks.vllm_ir_warm_up(None, None, [])  # type: ignore[arg-type]  # the platform is not looked at
    assert sorted(name for name, _ in driver.fetched) == sorted(each.name for each in PROGRAMS)


def test_what_the_driver_refuses_is_an_error_and_is_tried_anew(driver: Driver) -> None:
    """The kernel, the architecture and the cause."""
    driver.refuses = True
    with pytest.raises(CannotLoad, match=r"norm_float32 for sm_90.*NO_BINARY_FOR_GPU"):
        loading.run(launch(), torch.device("cuda", 0))
    driver.refuses = False
    loading.run(launch(), torch.device("cuda", 0))
    assert len(driver.started) == 1


@pytest.mark.parametrize("index", [0, 1])
def test_a_launch_that_the_driver_refuses_is_an_error(driver: Driver, index: int) -> None:
    """The kernel, the architecture, the grid and the cause; it pickles."""
    loading.warm_up(torch.device("cuda", index), [torch.float32])
    driver.refuses = True
    with pytest.raises(
        CannotStart,
        match=r"start rms_norm<float, true, 1> for sm_90 with 1 blocks of 32 x 4 threads: .*OUT_OF_RESOURCES",
    ) as caught:
        loading.run(launch(), torch.device("cuda", index))
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (str(again), again.kernel, again.arch) == (str(caught.value), "rms_norm<float, true, 1>", "sm_90")


def test_more_rows_than_a_grid_has_blocks_are_an_error(driver: Driver) -> None:
    """Never a truncated grid."""
    with pytest.raises(KernelError, match="blocks for so many rows"):
        loading.run(launch(2**34), torch.device("cuda", 0))
    assert driver.started == []


def test_cupy_is_given_the_arguments_by_one_pointer() -> None:
    """The kernel's only parameter, as it lies in memory, and neither CuPy's stream nor its packing."""
    pytest.importorskip("cupy_backends", reason="needs CuPy: pip install 'vllm-ir-provider-vllm-c[test]'")
    seen: list[Any] = []

    class Binding:
        """Stands for CuPy's binding of the driver."""

        def launchKernel(self, *words: int) -> None:  # noqa: N802 - CuPy's name
            """Read the arguments as the driver does."""
            parameters = ctypes.cast(words[9], ctypes.POINTER(ctypes.c_void_p))
            seen.append((words[:9], words[10], ctypes.string_at(parameters[0] or 0, geometry.NORM.size)))

    made = CupyLauncher()
    made._driver = Binding()
    planned = launch()
    made.start(5, planned, 77)
    assert seen == [((5, 1, 1, 1, 32, 4, 1, 0, 77), 0, planned.arguments)]
