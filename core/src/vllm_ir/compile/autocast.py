"""Ops whose native function autocast would change in eager: it does not reach into an op of a graph, and that is told.

Torch knows a graph's op by its fake, which is asked with autocast off, as that of every `torch.library.custom_op`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir import runtime
from vllm_ir.compile import torch_sizes, torch_version
from vllm_ir.compile.graph import arguments_of, calls_of, fake_arguments, source_of, tensors_of, value_of
from vllm_ir.names import NATIVE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import fx

    from vllm_ir.op import IrOp


def tell_of_autocast(module: torch.fx.GraphModule, ops: Mapping[str, IrOp]) -> None:
    """Warn once for each op that gives another dtype in this graph than native gives in eager.

    Args:
        module: the graph as Dynamo made it.
        ops: by name.
    """
    calls = calls_of(ops)
    told: set[str] = set()
    for node, regions in _regions(module.graph):
        op = calls[node.target][0] if node.target in calls else None
        if op is None or op.name in told:
            continue
        args = fake_arguments(arguments_of(node, op))
        device_type = next((tensor.device.type for tensor in tensors_of(args)), "")
        if device_type not in regions:
            continue
        told.add(op.name)
        dtypes = [tensor.dtype for tensor in tensors_of(value_of(node))]
        eager = _dtypes_under_autocast(op, args, device_type, regions[device_type])
        if eager is not None and eager != dtypes:
            at = f" ({where})" if (where := source_of(node)) else ""
            got, wanted = (", ".join(str(dtype) for dtype in each) for each in (dtypes, eager))
            message = (
                f"op {op.name}{at} is called under autocast, where native gives {wanted} in eager and {got} in a graph:"
                " autocast does not reach into the ops of a graph. Cast in the op's own function, or call it under"
                f" torch.autocast({device_type!r}, enabled=False)."
            )
            runtime.current().board(op).ledger.warn_once(NATIVE, "autocast", message)


def _regions(graph: fx.Graph) -> Iterator[tuple[fx.Node, dict[str, torch.dtype]]]:
    """Give every call under autocast, with the dtype of each device that it is on for."""
    import torch

    amp: Any = torch.amp
    around = {
        device: torch.get_autocast_dtype(device)
        for device in ("cpu", "cuda", "xpu")
        if torch.is_autocast_enabled(device)
    }
    entered: dict[fx.Node, dict[str, torch.dtype]] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is amp._enter_autocast:  # noqa: SLF001 - what Dynamo writes for a region
            device, dtype, enabled, *_ = node.args
            entered[node] = around
            around = {**around, device: dtype or torch.get_autocast_dtype(device)}
            if not enabled:
                del around[device]
        elif node.target is amp._exit_autocast:  # noqa: SLF001 - the same
            around = entered.pop(node.args[0], around)
        elif around:
            yield node, around


def _dtypes_under_autocast(
    op: IrOp, args: tuple[Any, ...], device_type: str, dtype: torch.dtype
) -> list[torch.dtype] | None:
    """Return the dtypes of native's results under autocast; None where fake tensors do not tell."""
    import torch

    shape_env = next(map(torch_version.shape_env_of, tensors_of(args)), None)
    try:
        with (
            torch.autocast(device_type, dtype),
            torch.no_grad(),
            torch_version.no_new_guards(shape_env),
            torch_sizes.forgetting_sizes(shape_env),
        ):
            return [tensor.dtype for tensor in tensors_of(op.declaration.native(*args))]
    except Exception:  # noqa: BLE001 - whatever native raises on fake tensors it will raise again, where that counts
        return None
