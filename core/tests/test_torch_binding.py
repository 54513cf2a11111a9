"""What torch holds of an op: one kernel for every device, all of it or nothing, in a namespace of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops, register_op
from vllm_ir.errors import DeclarationError, RetiredOp
from vllm_ir.installed_vllm import read_vllm_ops

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vllm_ir.runtime import Runtime

OVERLOADS = [
    *[getattr(ops, name) for name in ops.__all__],
    *[getattr(ops, name).maybe_inplace for name in ops.__all__ if getattr(ops, name).allow_inplace],
]
BACKENDS = ("CPU", "CUDA", "HIP", "XPU", "MPS", "HPU", "IPU", "MAIA", "PrivateUse1", "PrivateUse2")


@pytest.mark.parametrize("overload", OVERLOADS, ids=lambda overload: overload.name)
def test_one_kernel_for_every_device(overload: Any) -> None:
    """The kernel hangs on no device, so a backend that torch learns of later has it too; the table says so."""
    name = overload.torch_op.name()
    for backend in BACKENDS:
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(name, backend)
        assert torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, backend)
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeExplicitAutograd")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    table = torch._C._dispatch_dump_table(name)
    entries = {line.split(":")[0]: line for line in table.splitlines()}
    for backend in ("CPU", "CUDA", "XPU", "PrivateUse1"):
        assert "default backend kernel" in entries[backend]


@pytest.mark.parametrize("overload", OVERLOADS, ids=lambda overload: overload.name)
def test_the_overload_is_the_one_in_torch_ops(overload: Any) -> None:
    """The op holds the object that torch.ops gives, so that graphs and passes can compare it."""
    target = overload.torch_op
    namespace, _, name = target._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    assert getattr(packet, target._overloadname) is target
    assert namespace == "vllm_ir"
    assert [argument.name for argument in target._schema.arguments] == list(op_of(overload).declaration.signature.names)


def op_of(overload: Any) -> Any:
    """Return the op of an overload."""
    return getattr(overload, "op", overload)


def test_only_maybe_inplace_writes() -> None:
    """The schemas say that `default` writes to nothing, and `maybe_inplace` to the activations only."""
    for overload in OVERLOADS:
        written = [i for i, a in enumerate(overload.torch_op._schema.arguments) if a.alias_info is not None]
        is_default = overload.torch_op._overloadname == "default"
        assert written == ([] if is_default else op_of(overload).activation_indices)


def test_a_made_up_backend(tmp_path: Path) -> None:
    """Tensors of a backend that is registered after the op reach the kernel: a renamed PrivateUse1 needs no code."""
    del tmp_path
    script = (
        "import torch\n"
        "from vllm_ir import ops\n"
        "torch.utils.rename_privateuse1_backend('made_up')\n"
        "x = torch.empty(4, 8, device='meta')\n"
        "keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)\n"
        "kernel = ops.rms_norm.torch_op.redispatch\n"
        "out = kernel(keys, torch.ones(4, 8), None, 1e-5)\n"
        "print(out.shape == (4, 8), torch.allclose(out, torch.ones(4, 8), atol=1e-4))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr


def leftover(name: str) -> bool:
    """Tell whether torch knows an op of that name."""
    listed = any(f"vllm_ir::{name}" in op for op in torch._C._dispatch_get_all_op_names())
    return hasattr(torch.ops.vllm_ir, name) or listed


def good(x: torch.Tensor, count: int = 1) -> torch.Tensor:
    """Return x some times."""
    return x * count


def one_of_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return one tensor for two activations."""
    return x + y


def two(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two tensors."""
    return x + y, x - y


def untyped(x, y: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Leave a type out."""
    return x + y  # type: ignore[no-any-return]


def keyword_only(x: torch.Tensor, *, count: int = 1) -> torch.Tensor:
    """Take a parameter by keyword."""
    return x * count


def any_number(*xs: torch.Tensor) -> torch.Tensor:
    """Take any number of tensors."""
    return torch.stack(list(xs))


def odd_type(x: torch.Tensor, how: dict[str, int]) -> torch.Tensor:
    """Take what no schema can say."""
    return x * len(how)


def infinite(x: torch.Tensor, limit: float = float("inf")) -> torch.Tensor:
    """Have a default that no schema can say."""
    return x.clamp(max=limit)


@pytest.mark.parametrize(
    ("native", "options"),
    [
        (one_of_two, {"allow_inplace": True, "activations": ["x", "y"]}),
        (untyped, {}),
        (keyword_only, {}),
        (any_number, {}),
        (odd_type, {}),
        (infinite, {}),
        (good, {"activations": ["z"]}),
        (good, {"activations": ["count"]}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_failing_declaration_leaves_nothing(
    state: Runtime, native: Callable[..., Any], options: dict[str, Any]
) -> None:
    """After an error neither the registry nor torch knows the name, and a corrected op can have it."""
    name = f"failed_{native.__name__}_{len(options)}_{'_'.join(map(str, options.get('activations', [])))}"
    declare: Any = register_op(name=name, **options)
    with pytest.raises(DeclarationError):
        declare(native)
    assert name not in state.registry
    assert not leftover(name)
    op = register_op(name=name)(good)
    assert leftover(name)
    assert torch.equal(op(torch.ones(2), 3), torch.full((2,), 3.0))
    assert torch.equal(op.torch_op(torch.ones(2), count=3), torch.full((2,), 3.0))


def test_an_error_of_torch_leaves_nothing(state: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """If torch itself refuses in the middle, what was defined before is undone."""

    def broken(*_args: Any, **_options: Any) -> None:
        """Fail."""
        msg = "no gradients today"
        raise RuntimeError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(torch.library, "register_autograd", broken)
        with pytest.raises(RuntimeError, match="no gradients today"):
            register_op(name="torch_refuses")(good)
    assert "torch_refuses" not in state.registry
    assert not leftover("torch_refuses")
    op = register_op(name="torch_refuses")(good)
    x = torch.ones(2, requires_grad=True)
    op(x, 3).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2,), 3.0))


def test_a_name_used_again_needs_its_schema(state: Runtime) -> None:
    """Torch keeps the schema of an op that was forgotten: the same is filled anew, another is refused."""
    from vllm_ir.isolation import isolated

    assert state is not None
    with isolated():
        register_op(name="used_again")(good)(torch.ones(1))
    with isolated():
        assert register_op(name="used_again")(good)(torch.ones(1), 4).item() == 4
    with pytest.raises(RetiredOp, match="used_again"):
        register_op(name="used_again")(two)


VLLM_OP = """
from vllm.ir.op import register_op
import vllm.ir.op

@register_op
def rms_norm(x): ...

@register_op(name="renamed", allow_inplace=True)
def something(x): ...

@vllm.ir.op.register_op(allow_inplace=True)
def by_attribute(x): ...

@other
def not_an_op(x): ...

def plain(x): ...
"""


def make_vllm(root: Path, *, with_ir: bool = True) -> Path:
    """Make a vLLM package as text, and return its folder."""
    folder = root / "vllm"
    (folder / "ir" / "ops").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('vLLM was imported')\n", encoding="utf-8")
    if with_ir:
        (folder / "ir" / "op.py").write_text("", encoding="utf-8")
    (folder / "ir" / "ops" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "ir" / "ops" / "layernorm.py").write_text(VLLM_OP, encoding="utf-8")
    return folder


def test_the_ops_of_a_vllm_are_read_as_text(tmp_path: Path) -> None:
    """Functions that are decorated with register_op count, under the name that they are given."""
    assert read_vllm_ops(make_vllm(tmp_path)) == {"rms_norm", "renamed", "by_attribute"}


def test_a_vllm_without_the_layer_defines_nothing(tmp_path: Path) -> None:
    """Where ir/op.py is gone, no op of it is in torch."""
    assert read_vllm_ops(make_vllm(tmp_path, with_ir=False)) == frozenset()


@pytest.mark.parametrize("with_ir", [True, False])
def test_the_namespace_beside_a_vllm(tmp_path: Path, with_ir: bool) -> None:
    """Ops that an installed vLLM defines too live in a namespace of their own; vLLM is never imported for it."""
    make_vllm(tmp_path, with_ir=with_ir)
    script = (
        "import sys\n"
        "from vllm_ir import ops\n"
        "import torch\n"
        "print(ops.rms_norm.torch_op.namespace, ops.silu_and_mul.torch_op.namespace, 'vllm' in sys.modules)\n"
        "print(ops.rms_norm(torch.ones(1, 4), None, 1e-5).shape)\n"
        "f = torch.compile(lambda x: ops.rms_norm(x, None, 1e-5), backend='eager', fullgraph=True)\n"
        "print(f(torch.ones(1, 4)).shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{script}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first == f"{'vllm_ir_core' if with_ir else 'vllm_ir'} vllm_ir False"
