"""The way of a call: an entry that a program calls, a kernel that torch calls, and a chain that both run.

Entry and kernel are made once per overload and never change, so that Dynamo's guards on them hold; the chain is
switched below them by setting one global.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from vllm_ir.errors import InternalError
from vllm_ir.generation import make_function
from vllm_ir.names import RESERVED_PREFIX as PREFIX
from vllm_ir.signature import REQUIRED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.signature import SchemaTypes, Signature


class CallPath:
    """Entry and kernel of one overload, and the chain that both run.

    Args:
        name: the op's name, which Python shows when an argument is missing.
        signature: the op's signature.
        types: what the schema says of the parameters.
        cold: called with all arguments by position until a chain is set.
        failed: called with an exception out of the chain and all arguments; adds notes, or raises a better error.
        warm: sets the chain that holds; called before the first call that wants a gradient.
        donated: names of the parameters whose memory the call may write.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        types: SchemaTypes,
        cold: Callable[..., Any],
        failed: Callable[..., None],
        warm: Callable[[], object],
        donated: Sequence[str] = (),
    ) -> None:
        import torch
        import torch.autograd.forward_ad

        self._name = name
        self._signature = signature
        self._types = types
        self._cold = cold
        self._warm = warm
        self._donated = tuple(
            name
            for name, kind in zip(signature.names, types.kinds, strict=True)
            if name in donated and kind == "tensor"
        )
        plain = frozenset((torch.Tensor, torch.nn.Parameter))
        self._globals: dict[str, Any] = {
            f"{PREFIX}Tensor": torch.Tensor,
            f"{PREFIX}Parameter": torch.nn.Parameter,
            f"{PREFIX}plain": plain,
            f"{PREFIX}optional": plain | {type(None)},
            f"{PREFIX}dynamo": torch.compiler.is_dynamo_compiling,
            f"{PREFIX}modes": torch._C._len_torch_dispatch_stack,
            f"{PREFIX}transforms": torch._C._are_functorch_transforms_active,
            f"{PREFIX}functions": torch._C._has_torch_function_variadic,
            f"{PREFIX}grad": torch.is_grad_enabled,
            f"{PREFIX}written": torch._C._increment_version,
            f"{PREFIX}forward": torch.autograd.forward_ad,
            f"{PREFIX}failed": failed,
            **{f"{PREFIX}default_{p.name}": p.default for p in signature.parameters if p.default is not REQUIRED},
        }
        self.switch(cold, plain=cold, differentiable=self._cold_gradient)
        self.kernel = self._make(self._kernel_source(), f"{name}_kernel")
        self._globals[f"{PREFIX}route"] = self._make(self._route_source(), f"{name}_route")
        self._globals[f"{PREFIX}surplus"] = self._make(self._surplus_source(), name)
        self.entry = self._make(self._entry_source(), name)
        # Dynamo traces this function in place of the entry. The attribute is torch's own, without a public name; a
        # branch on is_dynamo_compiling() would do the same for a tenth of what dispatch may cost.
        vars(self.entry)["_torchdynamo_inline"] = self._make(self._traced_source(), f"{name}_traced")
        self.unwrapped = self._make(self._unwrapped_source(), name)
        shown = inspect.signature(vars(self.entry)["_torchdynamo_inline"])
        for made in (self.entry, self.unwrapped):
            vars(made)["__signature__"] = shown

    def connect(self, torch_op: Callable[..., Any]) -> None:
        """Set the torch op that tracers, modes, subclasses and transforms get."""
        self._globals[f"{PREFIX}torch_op"] = torch_op

    @property
    def torch_op(self) -> Callable[..., Any]:
        """The torch op that tracers get."""
        try:
            found: Callable[..., Any] = self._globals[f"{PREFIX}torch_op"]
        except KeyError:
            raise InternalError(what=f"Op {self._name!r} was called before it was bound to torch.") from None
        return found

    def switch(
        self, chain: Callable[..., Any], *, plain: Callable[..., Any], differentiable: Callable[..., Any] | None
    ) -> None:
        """Set what runs from the next call on; a call under way ends on what it began with.

        Args:
            chain: takes all arguments by position.
            plain: the same without anything that Dynamo cannot trace.
            differentiable: what runs when a gradient is wanted; None sends the call through the torch op.
        """
        self._globals[f"{PREFIX}chain"] = chain
        self._globals[f"{PREFIX}plain_chain"] = plain
        self._globals[f"{PREFIX}differentiable"] = differentiable or self._by_torch

    def cool(self) -> None:
        """Let the next call ask for a new chain."""
        self.switch(self._cold, plain=self._cold, differentiable=self._cold_gradient)

    def _cold_gradient(self, *args: Any) -> Any:
        """Set the chain that holds, then go its way: checkpointing wants the first call to be like any other."""
        self._warm()
        found: Callable[..., Any] = self._globals[f"{PREFIX}differentiable"]
        # Another thread may have taken the chain away again meanwhile.
        return self._by_torch(*args) if found == self._cold_gradient else found(*args)

    def _by_torch(self, *args: Any) -> Any:
        """Run the torch op, whose autograd formula gives native's gradients."""
        return self.torch_op(*args)

    @property
    def _arguments(self) -> str:
        """The parameters as they are handed on."""
        return ", ".join(self._signature.names)

    @property
    def _parameters(self) -> str:
        """The parameters as they are declared."""
        return ", ".join(
            p.name if p.default is REQUIRED else f"{p.name}={PREFIX}default_{p.name}"
            for p in self._signature.parameters
        )

    def _make(self, source: str, name: str) -> Any:
        """Return the function that a source defines."""
        return make_function(source, name, self._globals)

    def _entry_source(self) -> str:
        """Return the source of what a program calls."""
        return "\n".join(
            (
                f"def {self._name}({PREFIX}self, {self._parameters}, *{PREFIX}more):",
                *self._guarded(f"{PREFIX}route({self._arguments})"),
            )
        )

    def _surplus_source(self) -> str:
        """Return the source of a function without self, so that Python counts arguments as a program gives them."""
        return f"def {self._name}({self._parameters}): ..."

    def _refused(self, indent: str = "    ") -> tuple[str, str]:
        """Return the lines that let Python say what is wrong with a call of too many arguments."""
        call = f"{PREFIX}surplus({self._arguments}, *{PREFIX}more)"
        return f"{indent}if {PREFIX}more:", f"{indent}    return {call}"

    def _traced_source(self) -> str:
        """Return the source of what Dynamo sees."""
        return "\n".join(
            (
                f"def {self._name}_traced({PREFIX}self, {self._parameters}):",
                f"    return {PREFIX}torch_op({self._arguments})",
            )
        )

    def _unwrapped_source(self) -> str:
        """Return the source of what a program calls where the torch op is not wanted."""
        wants = self._wants_gradient()
        return "\n".join(
            (
                f"def {self._name}({PREFIX}self, {self._parameters}, *{PREFIX}more):",
                *self._refused(),
                f"    if {PREFIX}dynamo() or {PREFIX}modes():",
                *([f"        if {wants}:", f"            return {PREFIX}torch_op({self._arguments})"] if wants else []),
                f"        return {PREFIX}plain_chain({self._arguments})",
                *self._guarded(f"{PREFIX}route({self._arguments})"),
            )
        )

    def _guarded(self, otherwise: str) -> list[str]:
        """Return the lines that run the chain on plain tensors and do something else for all others.

        Three calls into torch, then exact types, then a tensor attribute. Modes of torch functions count, for tracing
        before dispatch is seen by nothing else; they are asked with one tensor, since the types of all are looked at.
        The likely type comes first, because a set costs a hash. A tensor on the meta device has the plain type, and no
        kernel may ever see it; one with a tangent has it, too, and a kernel would drop the tangent. The level of
        forward-mode differentiation has no public name; asking the tensors would cost ten times as much.
        """
        pairs = list(zip(self._signature.names, self._types.kinds, strict=True))
        lead = next((name for name, kind in pairs if kind == "tensor"), None)
        if lead is None or any(kind == "tensors" for _, kind in pairs):
            return [*self._refused(), f"    return {otherwise}"]
        tests = [f"{PREFIX}more", f"{PREFIX}modes()", f"{PREFIX}transforms()", f"{PREFIX}functions({lead})"]
        tests.append(f"{PREFIX}forward._current_level >= 0")
        for name, kind in pairs:
            if name == lead:
                tests.append(f"type({name}) is not {PREFIX}Tensor")
            elif kind == "tensor":
                tests.append(f"type({name}) is not {PREFIX}Tensor and type({name}) not in {PREFIX}plain")
            elif kind == "optional tensor":
                tests.append(f"type({name}) is not {PREFIX}Parameter and type({name}) not in {PREFIX}optional")
        tests.append(f"{lead}.is_meta")
        return [
            f"    if {' or '.join(tests)}:",
            *self._refused("        "),
            f"        return {otherwise}",
            *self._run([*self._differentiated(), *self._told()]),
        ]

    def _differentiated(self) -> list[str]:
        """Return the lines that hand on a call that wants a gradient."""
        return [
            f"        if {self._wants_gradient()}:",
            f"            return {PREFIX}differentiable({self._arguments})",
        ]

    def _told(self) -> list[str]:
        """Return the lines that tell autograd what is about to be written, so that a backward that kept it raises.

        Without grad mode, too: what is written there may have been kept in grad mode. It costs some 150 ns.
        """
        return [f"        {PREFIX}written(({', '.join(self._donated)},))"] if self._donated else []

    def _wants_gradient(self) -> str:
        """Return the test for "grad mode is on and an input requires grad", empty without tensors."""
        asked = [
            f"{name}.requires_grad" if kind == "tensor" else f"{name} is not None and {name}.requires_grad"
            for name, kind in zip(self._signature.names, self._types.kinds, strict=True)
            if kind in ("tensor", "optional tensor")
        ]
        return f"{PREFIX}grad() and ({' or '.join(asked)})" if asked else ""

    def _run(self, before: Sequence[str] = (), call: str = "chain") -> list[str]:
        """Return the lines that run a call; a try costs nothing until something is raised."""
        return [
            "    try:",
            *before,
            f"        return {PREFIX}{call}({self._arguments})",
            f"    except Exception as {PREFIX}error:",
            f"        {PREFIX}failed({PREFIX}error, {self._arguments})",
            "        raise",
        ]

    def _kernel_source(self) -> str:
        """Return the source of what torch calls; torch leaves out arguments that equal their defaults."""
        return "\n".join((f"def {self._name}_kernel({self._parameters}):", *self._run()))

    def _route_source(self) -> str:
        """Return the source of the way through the torch op, which says what is wrong with a wrong call."""
        return "\n".join((f"def {self._name}_route({self._arguments}):", *self._run(call="torch_op")))
