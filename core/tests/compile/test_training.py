"""Gradients through compiled ops are those of compiled native, to the bit, whoever runs the forward pass.

Torch itself sets the limit: AOTAutograd's graphs have no second backward pass, so derivatives of derivatives are
compiled where they are taken inside of the compiled function.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from vllm_ir import ops
from vllm_ir.compile.lower_to import lower_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm
silu: Any = ops.silu_and_mul
gelu: Any = ops.gelu_and_mul
rotary: Any = ops.rotary_embedding
ALL = (rms, fused, silu, gelu, rotary)
TOKENS, WIDTH, NEOX = 3, 8, True


def rows(*shape: int) -> Tensor:
    """Return values of a normal distribution, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def cache() -> Tensor:
    """Return cosines and sines for eight positions and four elements."""
    angles = torch.outer(torch.arange(8.0), torch.tensor([1.0, 0.3]))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


X, R, WEIGHT, KEY = rows(TOKENS, WIDTH), rows(TOKENS, WIDTH).cos(), rows(WIDTH), rows(TOKENS, 4)
POSITIONS = torch.tensor([3, 0, 7])


@dataclass(frozen=True, slots=True)
class Case:
    """A call of an op.

    Attributes:
        op: the op.
        leaves: what can have a gradient.
        call: calls the op, its `maybe_inplace` or its native on tensors of the function's own made from the leaves.
    """

    op: Any
    leaves: tuple[Tensor, ...]
    call: Callable[..., Any]


CASES = {
    "rms_norm": Case(rms, (X, WEIGHT), lambda op, x, w: op(x * 1, w, 1e-5)),
    "rms_norm without weight": Case(rms, (X,), lambda op, x: op(x * 1, None, 1e-5, 5)),
    "fused_add_rms_norm": Case(fused, (X, R, WEIGHT), lambda op, x, r, w: op(x * 1, r * 1, w, 1e-5)),
    "silu_and_mul": Case(silu, (X,), lambda op, x: op(x * 1)),
    "gelu_and_mul": Case(gelu, (X,), lambda op, x: op(x * 1)),
    "gelu_and_mul by tanh": Case(gelu, (X,), lambda op, x: op(x * 1, "tanh")),
    "rotary_embedding": Case(rotary, (X, KEY), lambda op, q, k: op(POSITIONS, q * 1, k * 1, 4, 4, cache(), NEOX)),
    "rotary_embedding with its cache": Case(
        rotary, (X, KEY, cache()), lambda op, q, k, c: op(POSITIONS, q * 1, k * 1, 4, 4, c, not NEOX)
    ),
}


def lower(module: torch.fx.GraphModule, _inputs: Any) -> Any:
    """Compile one graph: lower it and let torch run it node by node."""
    lower_graph(module)
    module.graph.lint()
    return module


def derivatives(run: Callable[..., Any], leaves: Sequence[Tensor], wanted: Sequence[int]) -> list[Tensor]:
    """Return results, and the gradients of some leaves, of a scalar that depends on all results."""
    args = [leaf.clone().requires_grad_(index in wanted) for index, leaf in enumerate(leaves)]
    results = run(*args)
    results = results if isinstance(results, tuple) else (results,)
    torch.stack([(i + 1) * result.float().sin().sum() for i, result in enumerate(results)]).sum().backward()
    grads = [args[index].grad for index in wanted]
    assert all(grad is not None for grad in grads)
    assert all(torch.equal(arg, leaf) for arg, leaf in zip(args, leaves, strict=True)), "a leaf was overwritten"
    return [result.detach() for result in results] + [grad for grad in grads if grad is not None]


def compiled_native(function: Callable[..., Any], *, inductor: bool = False) -> Any:
    """Compile a function with nothing of ours in it."""
    return torch.compile(function, backend="inductor" if inductor else "aot_eager", fullgraph=True)


def compile_ours(function: Callable[..., Any], door: str, *, inductor: bool = False, provider: str = "probe") -> Any:
    """Compile a function through one of the two doors."""
    own: dict[str, Any] = {} if inductor else {"lower_to": lower}
    own["priority"] = {op.name: [*([provider] if provider in op.impls else []), "native"] for op in ALL}
    if door == "function":
        return vllm_ir.compile(function, fullgraph=True, **own)
    return torch.compile(function, backend="vllm_ir", options=own, fullgraph=True)


def assert_same(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Fail unless tensors are the same to the bit."""
    for index, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert torch.equal(mine, theirs), f"tensor {index} differs by {(mine - theirs).abs().max()}"


WAYS = [("op", kind) for kind in ("native", "functional", "inplace")]
WAYS += [("donating", kind) for kind in ("native", "inplace", "both")]
CALLS = [
    pytest.param(name, form, kind, id=f"{name}-{form}-{kind}")
    for name, case in CASES.items()
    for form, kind in WAYS
    if case.op.allow_inplace or (form == "op" and kind != "inplace")
]


@functools.cache
def natives_of(name: str) -> dict[tuple[int, ...], list[Tensor]]:
    """Return results and gradients of a case as compiled native has them, for each leaf alone and for all."""
    case = CASES[name]
    run = compiled_native(functools.partial(case.call, case.op.declaration.native))
    every = tuple(range(len(case.leaves)))
    return {wanted: derivatives(run, case.leaves, wanted) for wanted in {*((index,) for index in every), every}}


@pytest.mark.parametrize(("name", "form", "kind"), CALLS)
def test_every_subset_of_gradients(provide: Any, name: str, form: str, kind: str) -> None:
    """Each leaf alone and all together get compiled native's gradients, and no leaf is written to."""
    case = CASES[name]
    provide(case.op, kind)
    target = case.op if form == "op" else case.op.maybe_inplace
    door = "function" if kind in ("functional", "both") else "backend"
    ours = compile_ours(functools.partial(case.call, target), door)
    for wanted, expected in natives_of(name).items():
        assert_same(derivatives(ours, case.leaves, wanted), expected)


@pytest.mark.parametrize("door", ["backend", "function"])
@pytest.mark.parametrize("name", CASES)
def test_the_forward_pass_is_the_providers(state: Any, name: str, door: str) -> None:
    """A provider of other values runs forward, and the gradients are native's all the same."""
    assert state is not None
    case, native = CASES[name], CASES[name].op.declaration.native

    @functools.wraps(native)
    def halved(*args: Any, **kwargs: Any) -> Any:
        """Return half of what native does."""
        results = native(*args, **kwargs)
        return tuple(result / 2 for result in results) if isinstance(results, tuple) else results / 2

    case.op.register_impl("probe")(halved)

    every = tuple(range(len(case.leaves)))

    def run(call: Any, factor: float) -> list[Tensor]:
        """Return results, and gradients of a sum that depends on no value of the results."""
        args = [leaf.clone().requires_grad_() for leaf in case.leaves]
        results = call(*args)
        results = results if isinstance(results, tuple) else (results,)
        torch.autograd.backward(results, [torch.ones_like(result) for result in results])
        return [*(result.detach() * factor for result in results), *(args[i].grad for i in every)]

    got = run(compile_ours(functools.partial(case.call, case.op), door), 2)
    assert_same(got, run(compiled_native(functools.partial(case.call, native)), 1))


def layer(chosen: tuple[Any, ...], q: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """Be a layer of all ops; what it is given stays as it is."""
    norm, add, silu_mul, gelu_mul, turn = chosen
    x, total = add(norm(q, w, 1e-5) * 2, r * 1, w, 1e-5)
    x, total = add(x.sin(), total, w, 1e-5)
    packed = torch.cat((x, total), dim=-1)
    turned, key = turn(POSITIONS, silu_mul(packed).cos(), gelu_mul(packed) * 1, 4, 4, cache(), NEOX)
    result: Tensor = (turned * key + total).float().sin()
    return result


OURS, DONATING = ALL, (rms, fused.maybe_inplace, silu, gelu, rotary.maybe_inplace)
NATIVES = tuple(op.declaration.native for op in ALL)
LEAVES = (X, R, WEIGHT)


@pytest.mark.parametrize("kind", ["native", "inplace"])
def test_inductor(provide: Any, kind: str) -> None:
    """With Inductor's kernels, too, the gradients of a layer of all ops are compiled native's."""
    for op in ALL:
        provide(op, kind)
    wanted = derivatives(compiled_native(functools.partial(layer, NATIVES), inductor=True), LEAVES, (0, 1, 2))
    door = "function" if kind == "native" else "backend"
    got = derivatives(compile_ours(functools.partial(layer, DONATING), door, inductor=True), LEAVES, (0, 1, 2))
    assert_same(got, wanted)


def with_no_grad(by: Any, q: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """Run a layer without gradients before one with them."""
    with torch.no_grad():
        scale = layer(by, q, r, w)
    return layer(by, q, r, w) * scale


def with_checkpoints(by: Any, q: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """Run two layers, each of which keeps nothing but its inputs."""
    inner = functools.partial(layer, by)
    first: Any = checkpoint(inner, q, r, w, use_reentrant=False)
    second: Tensor = checkpoint(inner, first, r, w, use_reentrant=False)
    return second


def on_products(by: Any, q: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """Run a layer on products of matrices, which autocast makes bfloat16."""
    square = torch.eye(WIDTH) * 0.5
    product = q @ square
    assert product.dtype == torch.bfloat16
    return layer(by, product, r @ square, w)


def with_autocast(by: Any, q: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """Run a layer on products of matrices in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        return on_products(by, q, r, w)


def with_gradient(by: Any, q: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """Return the square of the gradient of a layer, taken by `torch.autograd`."""
    (found,) = torch.autograd.grad(layer(by, q, r, w).sum(), q, create_graph=True)
    return found.pow(2)


def with_gradient_function(by: Any, q: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """Return the square of the gradient of a layer, taken by `torch.func`."""
    found: Tensor = torch.func.grad(lambda x: layer(by, x, r, w).sum())(q)
    return found.pow(2)


MODELS = (with_no_grad, with_checkpoints, with_autocast, on_products, with_gradient, with_gradient_function)


def derivatives_of(model: Callable[..., Any], run: Callable[..., Any]) -> list[Tensor]:
    """Return results and gradients of a compiled model, under autocast where it needs that."""
    around = torch.autocast("cpu", torch.bfloat16, enabled=model is on_products)
    with around, torch._dynamo.config.patch(trace_autograd_ops=True):
        return derivatives(run, LEAVES, (0, 1, 2))


@functools.cache
def native_model(model: Callable[..., Any]) -> list[Tensor]:
    """Return results and gradients of a model of natives."""
    return derivatives_of(model, compiled_native(functools.partial(model, NATIVES)))


@pytest.mark.parametrize(("form", "kind"), [way for way in WAYS if way[1] != "native"])
@pytest.mark.parametrize("model", MODELS)
def test_inside_a_model(provide: Any, model: Callable[..., Any], form: str, kind: str) -> None:
    """What a training loop wraps around a layer changes nothing, gradients of gradients included."""
    for op in ALL:
        provide(op, kind)
    door = "function" if kind == "both" else "backend"
    ours = compile_ours(functools.partial(model, DONATING if form == "donating" else OURS), door)
    got, wanted = derivatives_of(model, ours), native_model(model)
    if model not in (with_gradient, with_gradient_function):
        assert_same(got, wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        # Sums of second derivatives are taken in another order.
        assert (mine - theirs).abs().max() <= 4 * torch.finfo(torch.float32).eps * theirs.abs().max()


def test_a_second_backward_pass_is_torchs_error() -> None:
    """Behind a compiled function there are no second derivatives, and torch says so; none is silently zero."""
    x = X.clone().requires_grad_()
    result = compile_ours(lambda q: rms(q * 1, WEIGHT, 1e-5), "backend")(x)
    (first,) = torch.autograd.grad(result.sin().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()


def test_donated_inputs_that_backward_reads(provide: Any) -> None:
    """A weight's gradient needs the activations, so those are not written to though the caller donated them."""
    provide(fused, "inplace")

    def run(by: Any, x: Tensor, r: Tensor, w: Tensor) -> Any:
        """Give inputs of the graph to an op."""
        return by(x, r, w, 1e-5)

    wanted = derivatives(compiled_native(functools.partial(run, fused.declaration.native)), LEAVES, (2,))
    ours = compile_ours(functools.partial(run, fused.maybe_inplace), "backend")
    assert_same(derivatives(ours, LEAVES, (2,)), wanted)
