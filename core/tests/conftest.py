"""A clean environment for every test, and a process state of its own for those that declare or configure."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from vllm_ir.op import IrOp
    from vllm_ir.runtime import Runtime


def pytest_configure(config: pytest.Config) -> None:
    """Make known what a test may need of the machine."""
    config.addinivalue_line("markers", "cuda: needs a CUDA device and a torch that is built for it")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs hardware that is not here, and say what is missing."""
    if item.get_closest_marker("cuda") is None:
        return
    torch: Any = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")
    if torch.version.cuda is None:
        pytest.skip(f"needs a torch built for CUDA, this is {torch.__version__}")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, there is none")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take away every variable that vllm-ir reads, and stand in a folder without settings."""
    for name in list(os.environ):
        if name.startswith("VLLM_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def state() -> Iterator[Runtime]:
    """Give the test a process state in which only core's ops with their natives are known."""
    import vllm_ir.ops  # noqa: F401 - registers core's ops before the state is taken apart
    from vllm_ir.isolation import isolated

    with isolated() as fresh:
        yield fresh


@pytest.fixture
def add_provider(state: Runtime) -> Callable[..., list[tuple[Any, ...]]]:
    """Return a function that registers a provider of an op and returns the list of the calls it will get.

    Its results are native's times a factor, so that a result tells who ran. It refuses to see what is no plain tensor.
    """

    def add(
        op: IrOp,
        name: str,
        factor: float = 2.0,
        *,
        inplace: bool = False,
        supports_args: Callable[..., Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Register a provider of that name; an in-place one writes to the activations and returns them."""
        import torch

        calls: list[tuple[Any, ...]] = []
        native = op.declaration.native

        @functools.wraps(native)
        def kernel(*args: Any, **kwargs: Any) -> Any:
            """Run native on plain tensors and multiply."""
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
            for tensor in tensors:
                if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
                    msg = f"the kernel of {name} got a {type(tensor).__name__} on {tensor.device}"
                    raise RuntimeError(msg)
                tensor.data_ptr()
            calls.append(args)
            with torch.no_grad():
                result = native(*args, **kwargs)
                if not isinstance(result, tuple):
                    return result * factor
                scaled = tuple(part * factor for part in result)
                if not inplace:
                    return scaled
                activations = [args[i] for i in op.activation_indices]
                return tuple(activation.copy_(part) for activation, part in zip(activations, scaled, strict=True))

        op.register_impl(name, supports_args=supports_args, inplace=inplace)(kernel)
        return calls

    assert state is not None
    return add
