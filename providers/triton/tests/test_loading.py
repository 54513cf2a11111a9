"""What is compiled and loaded once, what a capture must not wait for, and what cannot be launched."""

from __future__ import annotations

import contextlib
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_provider_triton import compiling, loading, warming
from vllm_ir_provider_triton.errors import CannotCompile, NotWarm, TooManyRows
from vllm_ir_provider_triton.variants import Launch, Variant

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIANT = Variant("gate", ("bfloat16", "bfloat16"), (0, 1, 1, 1024), True, 4)  # noqa: FBT003 - a row of a table
DEVICE = torch.device("cuda", 0)


class Kernel:
    """Stands for a compiled kernel, and remembers how it is launched.

    Attributes:
        started: grid, arguments and stream of every launch.
    """

    def __init__(self) -> None:
        self.started: list[tuple[tuple[int, ...], tuple[Any, ...], int]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        """Return what starts it."""
        return lambda *arguments, stream: self.started.append((grid, arguments, stream))


class Gpu:
    """What torch and Triton are asked.

    Attributes:
        capturing: whether a graph is being captured.
        current: torch's current device.
        compiled: which variants were compiled, with the device that was current.
        entered: devices that were made current.
        error: what the compiler raises.
    """

    def __init__(self) -> None:
        self.capturing = False
        self.current = 0
        self.compiled: list[tuple[Variant, int]] = []
        self.entered: list[int] = []
        self.error: Exception | None = None
        self.kernel = Kernel()

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        """Make a device current."""
        before, self.current = self.current, index
        self.entered.append(index)
        yield
        self.current = before

    def compile(self, variant: Variant) -> Kernel:
        """Compile a variant."""
        if self.error is not None:
            raise self.error
        self.compiled.append((variant, self.current))
        return self.kernel


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Put something to ask in the place of torch's GPU and of Triton."""
    made = Gpu()
    monkeypatch.setattr(loading, "_LOADED", {})
    monkeypatch.setattr(loading, "_architecture", lambda index: f"sm_9{index}")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: made.current)
    monkeypatch.setattr(torch.cuda, "device", made.device)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 70 + index, raising=False)
    monkeypatch.setattr(compiling, "compile_variant", made.compile)
    monkeypatch.setattr(compiling, "version", lambda: "3.9.0")
    return made


def launch(blocks: int = 5) -> Launch:
    """Return a launch."""
    x = torch.ones(1)
    return Launch(VARIANT, blocks, (x, x), (16, 32), (1, 2, 3))


def test_a_kernel_is_compiled_once_a_device_and_started_on_the_current_stream(gpu: Gpu) -> None:
    """With pointers, numbers and constants in this order; another device is made current for it."""
    for device in (DEVICE, DEVICE, torch.device("cuda", 1)):
        loading.run(launch(), device)
    assert gpu.compiled == [(VARIANT, 0), (VARIANT, 1)]
    arguments = (16, 32, 1, 2, 3, 0, 1, 1, 1024)
    assert gpu.kernel.started == [((5, 1, 1), arguments, 70)] * 2 + [((5, 1, 1), arguments, 71)]
    assert gpu.entered == [0, 1, 1]
    assert gpu.current == 0


def test_nothing_is_compiled_while_a_graph_is_captured(gpu: Gpu) -> None:
    """A cold kernel is an error that says how to warm up; a warm one is captured."""
    gpu.capturing = True
    with pytest.raises(NotWarm, match=r"gate of bfloat16 .* is not loaded on cuda:0.*vllm_ir\.warm_up\('cuda:0'\)"):
        loading.run(launch(), DEVICE)
    gpu.capturing = False
    loading.run(launch(), DEVICE)
    gpu.capturing = True
    loading.run(launch(), DEVICE)
    assert len(gpu.kernel.started) == 2


def test_no_rows_start_nothing_and_too_many_are_an_error(gpu: Gpu) -> None:
    """A grid has an end."""
    loading.run(launch(0), DEVICE)
    with pytest.raises(TooManyRows, match="needs 2147483648 blocks for so many rows; a grid has 2147483647"):
        loading.run(launch(2**31), DEVICE)
    assert gpu.compiled == []


def test_what_triton_refuses_is_named(gpu: Gpu) -> None:
    """Kernel, architecture, compiler and its first line; the cause is kept."""
    gpu.error = RuntimeError("no such target\nand more")
    with pytest.raises(
        CannotCompile, match=r"Triton 3\.9\.0 .* gate of bfloat16 .* for sm_90: no such target\."
    ) as got:
        loading.run(launch(), DEVICE)
    assert got.value.__cause__ is gpu.error
    assert "VLLM_IR_PROVIDERS_DISABLED=triton,triton_batch_invariant" in str(got.value)
    again = pickle.loads(pickle.dumps(got.value))  # noqa: S301 - our own
    assert (again.arch, str(again)) == ("sm_90", str(got.value))


@pytest.mark.parametrize("invariant", [False, True])
def test_warming_up_loads_what_usual_calls_ask_for(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, invariant: bool) -> None:
    """Every kernel of the dtypes asked for, few rows and many, once; the batch-invariant ones where those serve."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", str(int(invariant)))
    warming.warm_up(torch.device("cpu"), [])
    assert gpu.compiled == []
    for _ in range(2):
        warming.warm_up(DEVICE, [torch.bfloat16, torch.float64])
    made = [variant for variant, _ in gpu.compiled]
    assert len(made) == len(set(made))
    assert {variant.dtypes[0] for variant in made} == {"bfloat16"}
    assert all(variant.wide for variant in made)
    programs = {variant.program for variant in made}
    assert programs == {"norm", "gate", "rotary"}
    assert all(variant.constants[4] > 0 for variant in made if variant.program == "norm") == invariant
    assert 10 <= len(made) <= 24


def test_warming_up_all_dtypes_is_the_default(gpu: Gpu) -> None:
    """On torch's current device."""
    gpu.current = 1
    warming.warm_up(None, [])
    assert {variant.dtypes[0] for variant, _ in gpu.compiled} == {"float32", "bfloat16", "float16"}
    assert {index for _, index in gpu.compiled} == {1}
