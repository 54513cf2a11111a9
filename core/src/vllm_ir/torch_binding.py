"""One op in torch: its overloads, fakes and gradients. The only code that speaks to torch.library.

Other ops, priorities and plugins are not known here. An op is bound to no device, so tensors of any backend, also one
that torch learns of later, reach the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_ir import inlining
from vllm_ir.errors import DefinedElsewhere, RetiredOp
from vllm_ir.generation import make_function
from vllm_ir.gradient import make_backward, save_inputs, with_dtypes
from vllm_ir.installed_vllm import vllm_ops
from vllm_ir.names import RESERVED_PREFIX as PREFIX
from vllm_ir.signature import REQUIRED

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch._ops import OpOverload

    from vllm_ir.declaration import OpDeclaration

NAMESPACE: Final = "vllm_ir"
"""Where ops live in torch.ops."""

NATIVE_NAMESPACE: Final = "vllm_ir_native"
"""Where ops live that run native without asking who is to run: an overload beside `default` would have its very
signature, and torch crashes when two such are undone."""

CLASHING_NAMESPACE: Final = "vllm_ir_core"
"""Where an op lives that the installed vLLM defines too: two definitions of one torch op end the process."""


@dataclass(slots=True)
class Binding:
    """What torch holds of one op.

    Torch keeps an op until the process ends, because graphs and caches hold it, and undoing a definition that was
    used ends in a crash. So a binding can be filled anew, but is never undone once an op has been called.

    Attributes:
        libraries: keep kernels and definitions alive; undone in this order, for torch crashes on a kernel whose
            definition went first.
        native_libraries: the same for `native`.
        namespace: where the op lives in torch.ops.
        declaration: the op that fills it.
        default: the functional overload.
        native: an op of its own that runs native whatever the priorities are, for graphs that must not see into it.
        maybe_inplace: the overload that donates the activations, or None.
        slots: what the functions that torch holds lead to.
    """

    libraries: tuple[torch.library.Library, ...]
    native_libraries: tuple[torch.library.Library, ...]
    namespace: str
    declaration: OpDeclaration
    default: OpOverload
    native: OpOverload
    maybe_inplace: OpOverload | None
    slots: dict[str, Callable[..., Any]]


def bind(
    declaration: OpDeclaration,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    retired: Binding | None = None,
) -> Binding:
    """Define an op in torch, all of it or nothing.

    Both overloads run the same functional kernel. A result that is a donated input would be right in eager, but a
    compiler counts them as two buffers and hands the memory of the input on while the result is still read.

    Args:
        declaration: the op.
        kernel: runs the op on real tensors without changing any.
        fake: runs it on fake and meta tensors.
        retired: what torch still holds of an op of that name that was forgotten.

    Raises:
        DefinedElsewhere: somebody else has defined it.
        RetiredOp: torch still holds an op of that name with another schema.
    """
    import torch

    slots = {"kernel": kernel, "fake": _noticed(fake, declaration.name), "native": declaration.native}
    if retired is not None:
        old = retired.declaration
        if (old.schema, old.inplace_schema) != (declaration.schema, declaration.inplace_schema):
            raise RetiredOp(op=declaration.name, got=declaration.schema, wanted=old.schema)
        retired.slots.update(slots)
        retired.declaration = declaration
        return retired
    space = namespace(declaration.name)
    definitions, library = (torch.library.Library(space, "FRAGMENT") for _ in range(2))
    qualified = f"{space}::{declaration.name}"
    try:
        # All definitions first: torch.ops keeps the overloads that it saw when the name was first asked for.
        try:
            definitions.define(declaration.name + declaration.schema)
            if declaration.allow_inplace:
                definitions.define(f"{declaration.name}.maybe_inplace{declaration.inplace_schema}")
        except RuntimeError as error:
            raise DefinedElsewhere(op=declaration.name, namespace=space) from error
        # CompositeExplicitAutograd: one kernel for every backend, not decomposed before AOTAutograd has seen the op.
        library.impl(declaration.name, _through(slots, "kernel", declaration), "CompositeExplicitAutograd")
        torch.library.register_fake(qualified, _through(slots, "fake", declaration), lib=library)
        native = _through(slots, "native", declaration)
        _bind_gradients(library, declaration.name, with_dtypes(native, declaration.types.words))
        _bind_tracing(library, declaration.name)
        default = getattr(getattr(torch.ops, space), declaration.name).default
        inplace = _bind_inplace(library, declaration, slots, default) if declaration.allow_inplace else None
    except BaseException:
        _undefine((library, definitions), space, declaration.name)
        raise
    more, whole = _bind_native(declaration, slots)
    return Binding((library, definitions), more, space, declaration, default, whole, inplace, slots)


class _Catch:
    """Stands in for a library, to get the kernel that torch makes of a backward formula before it is registered."""

    kernel: Callable[..., Any]

    def impl(self, _name: str, kernel: Callable[..., Any], *_key: Any, **_options: Any) -> None:
        """Keep the kernel."""
        self.kernel = kernel


def _bind_gradients(library: torch.library.Library, name: str, native: Callable[..., Any]) -> None:
    """Give `default` native's gradients, for backward and for the transforms of torch.func."""
    import torch

    catch = _Catch()
    torch.library.register_autograd(
        f"{library.ns}::{name}",
        make_backward(native),
        setup_context=save_inputs,
        lib=catch,
    )

    def differentiate(keys: Any, *args: Any, **kwargs: Any) -> Any:
        """Let grad, jvp and what is made of them see native's own operations: they take no formula of an op."""
        if _transformed():
            return native(*args, **kwargs)
        return catch.kernel(keys, *args, **kwargs)

    library.impl(name, differentiate, "Autograd", with_keyset=True)


def _noticed(fake: Callable[..., Any], op: str) -> Callable[..., Any]:
    """Return what runs on fake tensors, with a word to whoever inlines if torch is compiling a graph meanwhile."""
    from torch._guards import TracingContext

    compiling = TracingContext.try_get

    def run(*args: Any) -> Any:
        """Run the fake."""
        if compiling() is not None:
            found = inlining.inliner()
            if found is not None:
                found.notice(op)
        return fake(*args)

    return run


def _bind_tracing(library: torch.library.Library, name: str) -> None:
    """Ask whoever inlines before the functional overload becomes a node of a graph that torch compiles."""
    import torch
    from torch._guards import TracingContext
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

    compiling = TracingContext.try_get

    def record(mode: Any, overload: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        """Record what the call is made of, or else the call."""
        kwargs = kwargs or {}
        found = inlining.inliner() if compiling() is not None else None
        result = NotImplemented if found is None else found.expand(mode, overload, name, args, kwargs)
        return mode.__torch_dispatch__(overload, types, args, kwargs) if result is NotImplemented else result

    torch.library.register_torch_dispatch(f"{library.ns}::{name}", ProxyTorchDispatchMode, record, lib=library)


def _transformed() -> bool:
    """Tell whether tensors may be wrapped by a transform of torch.func, or carry tangents of forward-mode AD."""
    import torch
    import torch.autograd.forward_ad

    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def unbind(binding: Binding) -> None:
    """Undo a definition; for one whose op was never called."""
    _undefine(binding.libraries, binding.namespace, binding.declaration.name)
    _undefine(binding.native_libraries, NATIVE_NAMESPACE, binding.declaration.name)


def _through(slots: dict[str, Callable[..., Any]], slot: str, declaration: OpDeclaration) -> Callable[..., Any]:
    """Return a function with the op's signature that runs what a slot holds."""
    parameters = ", ".join(
        p.name if p.default is REQUIRED else f"{p.name}={PREFIX}default_{p.name}"
        for p in declaration.signature.parameters
    )
    name = f"{declaration.name}_{slot}_slot"
    source = f"def {name}({parameters}):\n    return {PREFIX}slots[{slot!r}]({', '.join(declaration.signature.names)})"
    scope: dict[str, Any] = {f"{PREFIX}default_{p.name}": p.default for p in declaration.signature.parameters}
    return make_function(source, name, {**scope, f"{PREFIX}slots": slots})


def namespace(op: str) -> str:
    """Return the torch namespace of an op."""
    return CLASHING_NAMESPACE if op in vllm_ops() else NAMESPACE


def _bind_native(
    declaration: OpDeclaration, slots: dict[str, Callable[..., Any]]
) -> tuple[tuple[torch.library.Library, ...], OpOverload]:
    """Define the op that runs native whatever the priorities are, and return its libraries and itself."""
    import torch

    definitions, library = (torch.library.Library(NATIVE_NAMESPACE, "FRAGMENT") for _ in range(2))
    definitions.define(declaration.name + declaration.schema)
    native = _through(slots, "native", declaration)
    library.impl(declaration.name, native, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NATIVE_NAMESPACE}::{declaration.name}", native, lib=library)
    overload: OpOverload = getattr(getattr(torch.ops, NATIVE_NAMESPACE), declaration.name).default
    return (library, definitions), overload


def _bind_inplace(
    library: torch.library.Library,
    declaration: OpDeclaration,
    slots: dict[str, Callable[..., Any]],
    default: OpOverload,
) -> OpOverload:
    """Give the overload that donates the activations what it runs, and return it."""
    import torch

    name = f"{declaration.name}.maybe_inplace"
    library.impl(name, _through(slots, "kernel", declaration), "CompositeExplicitAutograd")
    fake = _through(slots, "fake", declaration)
    torch.library.register_fake(f"{library.ns}::{name}", fake, lib=library)
    overload: OpOverload = getattr(getattr(torch.ops, library.ns), declaration.name).maybe_inplace

    def redirect(_keys: Any, *args: Any, **kwargs: Any) -> Any:
        """Take the functional overload where a gradient is wanted, since a donated input cannot be saved for it."""
        wanted = torch.is_grad_enabled() and torch._C._any_requires_grad(*args, **kwargs)
        if wanted or _transformed():
            return default(*args, **kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*args, **kwargs)

    library.impl(name, redirect, "Autograd", with_keyset=True)
    # Torch has no way to batch or functionalise an op that may write to its inputs and has results, too; what it would
    # write is nothing that anybody may read.
    for key in ("FuncTorchBatched", "Functionalize"):
        library.impl(name, default, key)
    return overload


def _undefine(libraries: tuple[torch.library.Library, ...], space: str, name: str) -> None:
    """Remove what libraries hold in this order, also from the cache that `torch.ops` keeps."""
    import torch

    for library in libraries:
        library._destroy()
    owner = getattr(torch.ops, space)
    if name in vars(owner):
        delattr(owner, name)
    if name in getattr(owner, "_dir", ()):
        owner._dir.remove(name)
