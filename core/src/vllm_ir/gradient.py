"""Native's gradients for any provider: backward runs the native function again on the saved inputs.

A kernel has no gradient of its own; without this formula compiled code would return None for it without a word.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what backward needs: tensors where autograd guards them against writes, the rest as it is."""
    import torch

    del output
    flat: list[Any] = []
    layout: list[Any] = []
    for value in inputs:
        if isinstance(value, torch.Tensor):
            layout.append(("tensor", None))
            flat.append(value)
        elif isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            layout.append(("tensors", len(value)))
            flat.extend(value)
        else:
            layout.append(("value", value))
    ctx.save_for_backward(*flat)
    ctx.layout = layout


@functools.cache
def _dtypes() -> dict[int, torch.dtype]:
    """Return the dtypes by the numbers that torch's schemas have for them."""
    import torch

    found = {}
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        with contextlib.suppress(RuntimeError):  # not every dtype has a name in schemas
            text = f"op(ScalarType x={str(dtype).removeprefix('torch.')}) -> Tensor"
            schema: Any = torch._C.parse_schema(text)  # noqa: SLF001 - as signature reads schemas
            found[int(schema.arguments[0].default_value)] = dtype
    return found


def with_dtypes(native: Callable[..., Any], words: Sequence[str]) -> Callable[..., Any]:
    """Return native for arguments as a tracer hands them to a backward: dtypes as numbers.

    Args:
        native: the op's native function.
        words: the types of its parameters as torch writes them.
    """
    places = [i for i, word in enumerate(words) if "ScalarType" in word]
    if not places:
        return native

    def run(*args: Any) -> Any:
        """Run native with dtypes in place of their numbers."""
        given = list(args)
        for i in places:
            if i < len(given) and isinstance(given[i], int):
                given[i] = _dtypes()[given[i]]
        return native(*given)

    return run


def make_backward(native: Callable[..., Any]) -> Callable[..., Any]:
    """Return the backward formula of an op, itself differentiable when the caller wants a graph of it.

    Args:
        native: the op's native function.
    """

    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradient of every input, None for those that need none."""
        import torch

        create_graph = torch.is_grad_enabled()
        # Torch leaves out arguments that equal their defaults, so there may be fewer answers than parameters.
        needs = [*ctx.needs_input_grad, *[False] * (len(ctx.layout) - len(ctx.needs_input_grad))]
        wanted: list[torch.Tensor] = []

        def tracked(value: torch.Tensor, *, needed: bool) -> torch.Tensor:
            """Return a tensor of its own per argument: one tensor given twice has two gradients."""
            if not needed or value is None:
                return value
            alias = value.view_as(value) if create_graph else value.detach().requires_grad_()
            wanted.append(alias)
            return alias

        with torch.enable_grad():
            saved = iter(ctx.saved_tensors)
            arguments: list[Any] = []
            for (kind, rest), need in zip(ctx.layout, needs, strict=False):
                if kind == "tensor":
                    arguments.append(tracked(next(saved), needed=bool(need)))
                elif kind == "tensors":
                    each = need if isinstance(need, (list, tuple)) else [need] * rest
                    arguments.append([tracked(next(saved), needed=bool(n)) for n in each])
                else:
                    arguments.append(rest)
            results = native(*arguments)
            results = results if isinstance(results, (tuple, list)) else (results,)
            pairs = [
                (result, grad)
                for result, grad in zip(results, grads, strict=True)
                if grad is not None and isinstance(result, torch.Tensor) and result.requires_grad
            ]
            found = iter(
                torch.autograd.grad(
                    [result for result, _ in pairs],
                    wanted,
                    [grad for _, grad in pairs],
                    create_graph=create_graph,
                    allow_unused=True,
                )
                if pairs
                else [None] * len(wanted)
            )
        answers: list[Any] = []
        for (kind, rest), need in zip(ctx.layout, needs, strict=False):
            if kind == "tensors":
                each = need if isinstance(need, (list, tuple)) else [need] * rest
                answers.append([next(found) if n else None for n in each])
            else:
                answers.append(next(found) if kind == "tensor" and need else None)
        return tuple(answers[: len(ctx.needs_input_grad)])

    return backward
