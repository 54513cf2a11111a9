"""A kernel as a torch op, for whoever traces: with the schema and the fake of the op that it computes.

Eager calls have no business here; they would pay torch's dispatcher more than many a kernel. An op is defined when it
is made rather than when somebody traces it, because a graph that comes from a cache calls ops that nobody has traced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import vllm_ir.ops  # noqa: F401 - the ops of core are found by name once they are registered
from vllm_ir import runtime
from vllm_ir.errors import BadValue, NoInplaceForm, TorchNameTaken
from vllm_ir.kernel_forms import KernelForms
from vllm_ir.memory import lie_apart, storage_of
from vllm_ir.names import check_torch_namespace
from vllm_ir.op import IrOp
from vllm_ir.staging import open_staging

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._library.custom_ops import CustomOpDef

is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class TorchOp:
    """A kernel as a torch op; call it with the op's arguments by position, where a tracer watches.

    Attributes:
        name: what torch calls it, such as "vllm_ir_triton::rms_norm".
        functional: torch's definition of the form that writes no input.
        inplace: that of the form that writes activations and returns the other results; None where nothing is written.
    """

    def __init__(
        self, op: IrOp, name: str, functional: CustomOpDef, inplace: CustomOpDef | None, written: tuple[int, ...]
    ) -> None:
        self.name = name
        self.functional = functional
        self.inplace = inplace
        self._op = op.name
        self._written = written
        self._left = len(op.declaration.types.outputs) - len(written)

    def __call__(self, *args: Any) -> Any:
        """Return the results as new tensors; no input is written."""
        return self.functional(*args)

    def donating(self, *args: Any) -> Any:
        """Return the results with the written activations among them.

        They are left alone, and all results are new tensors, where one is not contiguous, where another tensor of the
        call shares their memory, and where a gradient is wanted, which torch then says that there is none of.

        Raises:
            NoInplaceForm: there is no form that writes.
        """
        if self.inplace is None:
            raise NoInplaceForm(op=self._op, name=self.name)
        written = [args[place] for place in self._written]
        if not all(dense(each) for each in written) or not _apart(args, self._written) or _want_gradient(args):
            return self.functional(*args)
        left = self.inplace(*args)
        results = (*(left if self._left > 1 else (left,) * self._left), *written)
        return results if len(results) > 1 else results[0]

    def __repr__(self) -> str:
        """Return the name."""
        return f"<torch op {self.name}>"


def make_torch_op(
    op: str | IrOp,
    kernel: Callable[..., Any],
    *,
    namespace: str,
    device_types: str | Sequence[str] | None = None,
    writes: Sequence[str] | None = None,
    fake: Callable[..., Any] | None = None,
) -> TorchOp:
    """Define a kernel in torch as an op of the name, the schema and the fake of the op that it computes.

    It has no gradient: dispatch asks no kernel for one.

    Args:
        op: the op or its name.
        kernel: takes the op's arguments by position. If there is anything that it may write, it takes one more, whether
            it may now: it then returns the activations that it has written, and new tensors in the place of others.
        namespace: where it lives in `torch.ops`, one for each provider.
        device_types: the device types that the kernel is for; any when None.
        writes: which activations it may write; when None, all of an op that allows in-place. The last results are what
            comes to lie in them, in the order of the parameters; a kernel that returns others there has them copied.
        fake: what its results are like, from the op's arguments; when None, they are laid out as the op's own fake lays
            them out for contiguous arguments.

    Raises:
        UnknownOp: no op of that name is registered.
        BadName: the namespace is not legal, or torch.ops or torch itself uses it.
        BadValue: an argument is not what it should be.
        TorchNameTaken: torch has an op of that name in this namespace.
    """
    check_torch_namespace(namespace)
    name = f"{namespace}::{op.name if isinstance(op, IrOp) else op}"
    who = f"torch op {name!r}"
    if not isinstance(op, (str, IrOp)):
        raise BadValue(
            who=f"A torch op in namespace {namespace!r}", field="op", got=repr(op), wanted="an op or its name"
        )
    functions: dict[str, object] = {"kernel": kernel, **({} if fake is None else {"fake": fake})}
    for field, function in functions.items():
        if not callable(function):
            raise BadValue(who=who, field=field, got=repr(function), wanted="a function of the op's arguments")
    _check_devices(who, device_types)
    known = _find(op)
    if known.allow_inplace:
        written = _written(known, who, writes)
    elif writes is not None:
        raise BadValue(who=who, field="writes", got=repr(writes), wanted="None: the op has no in-place form")
    else:
        written = ()
    for taken in (known.name, *([f"{known.name}_"] if written else ())):
        if hasattr(getattr(torch.ops, namespace), taken):
            raise TorchNameTaken(op=known.name, name=f"{namespace}::{taken}")
    forms = KernelForms(known, name, kernel, fake, written)
    functional = torch.library.custom_op(
        name, forms.run, mutates_args=(), device_types=device_types, schema=known.declaration.schema
    )
    functional.register_fake(forms.run_fake)
    inplace = None
    if written:
        names = tuple(known.declaration.signature.names[place] for place in written)
        schema = forms.inplace_schema(names)
        inplace = torch.library.custom_op(
            f"{name}_", forms.write, mutates_args=names, device_types=device_types, schema=schema
        )
        if forms.left:
            inplace.register_fake(forms.write_fake)
    return TorchOp(known, name, functional, inplace, written)


def dense(x: torch.Tensor) -> bool:
    """Tell whether a tensor is contiguous, judged without its leading size; False where that would decide."""
    strides, sizes = x.stride(), x.shape
    if not strides:
        return True
    return strides[-1] == 1 and all(strides[i] == strides[i + 1] * sizes[i + 1] for i in range(x.dim() - 1))


def _apart(args: Sequence[Any], written: Sequence[int]) -> bool:
    """Tell whether what may be written shares no memory with another tensor of a call.

    Dynamo knows nothing of memory and is asked for identity alone, and fake tensors have theirs but no addresses.
    """
    tensors = _tensors(args)
    if is_dynamo_compiling():
        return all(sum(other is args[place] for _, other in tensors) == 1 for place in written)
    if all(type(each) in (torch.Tensor, torch.nn.Parameter) for _, each in tensors):
        return lie_apart(args, written)
    homes = [(place, storage_of(each)) for place, each in tensors]
    mine = [home for place, home in homes if place in written]
    others = {home for place, home in homes if place not in written}
    return len(set(mine)) == len(mine) and others.isdisjoint(mine)


def _want_gradient(args: Sequence[Any]) -> bool:
    """Tell whether a call's results are to have a gradient."""
    return torch.is_grad_enabled() and any(each.requires_grad for _, each in _tensors(args))


def _tensors(args: Sequence[Any]) -> list[tuple[int, torch.Tensor]]:
    """Return the tensors of a call, those in lists among them, with the places of their arguments."""
    return [
        (place, each)
        for place, arg in enumerate(args)
        for each in (arg if isinstance(arg, (list, tuple)) else (arg,))
        if isinstance(each, torch.Tensor)
    ]


def _check_devices(who: str, device_types: object) -> None:
    """Raise unless torch knows types of devices of these names, before anything is defined.

    Raises:
        BadValue: it does not.
    """
    wanted = "device types of torch, such as 'cuda'"
    if device_types is None:
        return
    if not isinstance(device_types, (str, list, tuple, set, frozenset)):
        raise BadValue(who=who, field="device_types", got=repr(device_types), wanted=wanted)
    for device in (device_types,) if isinstance(device_types, str) else device_types:
        try:
            if isinstance(device, str) and torch.device(device).index is None:
                continue
        except RuntimeError:
            pass
        raise BadValue(who=who, field="device_types", got=repr(device), wanted=wanted)


def _find(op: str | IrOp) -> IrOp:
    """Return an op, also one of the distribution that is being loaded.

    Raises:
        UnknownOp: none of that name is registered.
    """
    if isinstance(op, IrOp):
        return op
    staging, state = open_staging(), runtime.current()
    if staging is not None:
        return staging.find(op)
    if op not in state.registry:
        state.load()
    return state.registry.get(op)


def _written(op: IrOp, who: str, writes: Sequence[str] | None) -> tuple[int, ...]:
    """Return the places of the activations that a kernel may write, in the order of the parameters.

    Raises:
        BadValue: one is no activation.
    """
    names = op.declaration.activations
    if writes is None:
        return op.declaration.activation_indices
    if not isinstance(writes, (list, tuple, set, frozenset)) or any(each not in names for each in writes):
        raise BadValue(who=who, field="writes", got=repr(writes), wanted=f"some of the activations {names}")
    return tuple(i for i, name in enumerate(op.declaration.signature.names) if name in writes)
