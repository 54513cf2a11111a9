"""Modes, tensor subclasses and transforms see the torch op, and a provider's kernel sees plain tensors only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.runtime import Runtime

Inputs = tuple[Tensor, Tensor, Tensor]


class Log(TorchDispatchMode):
    """Log every torch op that is called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Log and run."""
        del types
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class FunctionLog(TorchFunctionMode):
    """Log every torch function that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Log and run."""
        del types
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Wrapped(Tensor):
    """A tensor that holds another, and logs what is called on it."""

    held: Tensor
    seen: list[Any]

    @staticmethod
    def __new__(cls: type[Wrapped], inner: Tensor, seen: list[Any]) -> Any:
        """Wrap a tensor."""
        made: Any = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())
        made.held, made.seen = inner, seen
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Log, then run on the tensors inside."""
        del types
        seen = next(value.seen for value in args if isinstance(value, Wrapped))
        seen.append(func)
        result = func(*[value.held if isinstance(value, Wrapped) else value for value in args], **(kwargs or {}))
        return cls(result, seen) if func is torch.ops.aten.clone.default else result


class Quiet(Wrapped):
    """The same for one that torch functions do not ask."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


@pytest.fixture
def device_mode() -> Iterator[None]:
    """Set a default device, which is a mode of torch functions."""
    torch.set_default_device("cpu")
    yield
    torch.set_default_device(None)


def test_eager(situation: Any, inputs: Inputs) -> None:
    """Without any mode the provider that must run is called with the plain tensors, and inputs stay as they are."""
    kept = [value.clone() for value in inputs]
    result = situation.program.function()(*inputs)
    torch.testing.assert_close(result, situation.program.expected(*inputs, situation.factor), rtol=0, atol=0)
    situation.check_runs()
    assert all(torch.equal(now, before) for now, before in zip(inputs, kept, strict=True))


def test_dispatch_mode(situation: Any, inputs: Inputs) -> None:
    """A dispatch mode sees the op once, and neither the arithmetic of native nor of a provider before it."""
    with Log() as log:
        result = situation.program.function()(*inputs)
    assert log.seen.count(situation.program.target) == 1
    torch.testing.assert_close(result, situation.program.expected(*inputs, situation.factor))
    situation.check_runs()


def test_function_mode(situation: Any, inputs: Inputs) -> None:
    """A mode of torch functions changes nothing in the result."""
    with FunctionLog():
        result = situation.program.function()(*inputs)
    torch.testing.assert_close(result, situation.program.expected(*inputs, situation.factor))
    situation.check_runs()


@pytest.mark.usefixtures("device_mode")
def test_default_device(situation: Any, inputs: Inputs) -> None:
    """A default device changes nothing in the result."""
    result = situation.program.function()(*inputs)
    torch.testing.assert_close(result, situation.program.expected(*inputs, situation.factor))
    situation.check_runs()


def test_inference_mode(situation: Any, inputs: Inputs) -> None:
    """Inference tensors are plain tensors."""
    with torch.inference_mode():
        x, r, w = (value.clone() for value in inputs)
        result = situation.program.function()(x, r, w)
    torch.testing.assert_close(result, situation.program.expected(*inputs, situation.factor))
    situation.check_runs()


@pytest.mark.parametrize("inside", [True, False])
def test_fake_tensors(situation: Any, inputs: Inputs, inside: bool) -> None:
    """Fake tensors give fake results of the real shape, dtype and strides, in their mode and outside of it."""
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) for value in inputs]
        result = situation.program.function()(*fakes) if inside else None
    if result is None:
        result = situation.program.function()(*fakes)
    real = situation.program.expected(*inputs)
    assert type(result).__name__ == "FakeTensor"
    assert (result.shape, result.dtype, result.stride()) == (real.shape, real.dtype, real.stride())
    situation.check_idle()


def test_a_fake_weight_beside_real_rows(situation: Any, inputs: Inputs) -> None:
    """A fake tensor that is only the weight keeps kernels away, too."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        weight = mode.from_tensor(inputs[2])
    result = situation.program.function()(inputs[0], inputs[1], weight)
    assert type(result).__name__ == "FakeTensor"
    situation.check_idle()


def test_meta_tensors(situation: Any, inputs: Inputs) -> None:
    """Tensors on the meta device give such results, and no kernel is ever called on them."""
    result = situation.program.function()(*[value.to("meta") for value in inputs])
    real = situation.program.expected(*inputs)
    assert result.device.type == "meta"
    assert (result.shape, result.dtype, result.stride()) == (real.shape, real.dtype, real.stride())
    situation.check_idle()


@pytest.mark.parametrize("kind", [Wrapped, Quiet])
@pytest.mark.parametrize("which", ["rows", "weight", "all"])
def test_subclass(situation: Any, inputs: Inputs, kind: type[Wrapped], which: str) -> None:
    """A tensor subclass sees the op once, with and without __torch_function__, also when only the weight is one."""
    wrapped = {"rows": {0, 1}, "weight": {2}, "all": {0, 1, 2}}[which]
    seen: list[Any] = []
    arguments = [kind(value, seen) if i in wrapped else value for i, value in enumerate(inputs)]
    result = situation.program.function()(*arguments)
    assert seen.count(situation.program.target) == 1
    torch.testing.assert_close(plain(result), situation.program.expected(*inputs, situation.factor))
    situation.check_runs()


def plain(value: Any) -> Tensor:
    """Return the tensor inside."""
    return value.held if isinstance(value, Wrapped) else value


def test_vmap(situation: Any, inputs: Inputs) -> None:
    """Vmap over the rows gives the rows, and kernels see plain tensors."""
    run = situation.program.function()
    result = torch.func.vmap(lambda x, r: run(x, r, inputs[2]))(inputs[0], inputs[1])
    torch.testing.assert_close(result, situation.program.expected(*inputs, situation.factor))
    situation.check_runs()


def test_vmap_over_the_weight(situation: Any, inputs: Inputs) -> None:
    """Vmap over the weight alone gives one result per weight."""
    weights = torch.randn(3, 64)
    result = torch.func.vmap(situation.program.function(), in_dims=(None, None, 0))(inputs[0], inputs[1], weights)
    wanted = [situation.program.expected(*inputs[:2], weight, situation.factor) for weight in weights]
    torch.testing.assert_close(result, torch.stack(wanted))
    situation.check_runs()


def test_nested_vmap(program: Any, inputs: Inputs) -> None:
    """Vmap in vmap, over rows and weights, is right."""
    weights = torch.randn(3, 64)
    over_rows = torch.func.vmap(program.function(), in_dims=(0, 0, None))
    result = torch.func.vmap(over_rows, in_dims=(None, None, 0))(inputs[0], inputs[1], weights)
    torch.testing.assert_close(result, torch.stack([program.expected(*inputs[:2], weight) for weight in weights]))


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda f, x: torch.func.grad(lambda v: f(v).sin().sum())(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x.cos(),))[1],
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](x)[0],
    "hessian": lambda f, x: torch.func.hessian(lambda v: f(v).sin().sum())(x[:1, :]),
    "grad_of_grad": lambda f, x: torch.func.grad(lambda u: torch.func.grad(lambda v: f(v).sin().sum())(u).sum())(x),
    "per_sample": lambda f, x: torch.func.vmap(torch.func.grad(lambda v: f(v).sin().sum()))(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("provider", [False, True])
def test_derivatives_by_transform(
    program: Any,
    add_provider: Callable[..., list[tuple[Any, ...]]],
    transform: str,
    provider: bool,
) -> None:
    """The transforms of torch.func give native's derivatives, also when a provider would run."""
    if provider:
        add_provider(program.op, "a", 1.0)
        program.op.set_default("a")
    x, r, w = torch.randn(2, 6, dtype=torch.float64), torch.randn(6, dtype=torch.float64), torch.rand(6).double()
    run = program.function()
    got = TRANSFORMS[transform](lambda v: run(v, r.expand_as(v), w), x)
    wanted = TRANSFORMS[transform](lambda v: program.expected(v, r.expand_as(v), w), x)
    torch.testing.assert_close(got, wanted)


def test_the_torch_op_called_by_itself(situation: Any, inputs: Inputs) -> None:
    """The torch op, called without the op before it, runs the same provider."""
    x, r, w = inputs
    target = situation.program.target
    if situation.program.fused:
        out, total = target(x.clone(), r.clone(), w, 1e-5)
        result = out + total
    else:
        result = target(x, w, 1e-5) + r
    torch.testing.assert_close(result, situation.program.expected(*inputs, situation.factor))
    situation.check_runs()


def test_a_retaining_mode_keeps_donated_inputs(state: Runtime, add_provider: Any, inputs: Inputs) -> None:
    """Through the torch op nothing is donated: what comes out is never an input, so compilers may count buffers."""
    assert state is not None
    op: Any = ops.fused_add_rms_norm
    add_provider(op, "a", inplace=True)
    op.set_default("a")
    x, r, w = inputs
    results = op.maybe_inplace.torch_op(x, r, w, 1e-5)
    assert not {result.data_ptr() for result in results} & {x.data_ptr(), r.data_ptr()}
    results = op.maybe_inplace(x, r, w, 1e-5)
    assert [result.data_ptr() for result in results] == [x.data_ptr(), r.data_ptr()]
