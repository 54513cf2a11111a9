"""A failure inside a kernel goes through untouched, with a note of who ran, and no other kernel is tried."""

from __future__ import annotations

import inspect
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import enable_torch_wrap, ops
from vllm_ir.errors import WrongArgument
from vllm_ir.failure import explain_failure, find_wrong_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.runtime import Runtime

X = torch.ones(2, 4)
NOTE = "while op 'rms_norm' ran on provider 'broken'"
CALLS: list[str] = []


class KernelError(Exception):
    """What a kernel raises; it takes two arguments, so nobody could make it anew from a text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


RAISED = KernelError(700, "illegal memory access")


def broken(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    """Fail."""
    del x, weight, epsilon, variance_size
    CALLS.append("broken")
    raise RAISED


def behind(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    """Stand behind the one that fails."""
    del weight, epsilon, variance_size
    CALLS.append("behind")
    return x


@pytest.fixture
def op(state: Runtime) -> Iterator[Any]:
    """Give rms_norm with a provider that fails, and one behind it."""
    assert state is not None
    RAISED.__dict__.pop("__notes__", None)
    CALLS.clear()
    ops.rms_norm.register_impl("broken")(broken)
    ops.rms_norm.register_impl("behind")(behind)
    ops.rms_norm.set_default(["broken", "behind"])
    yield ops.rms_norm
    # Its traceback would keep the frames of the test alive, and with them the scope that was open there.
    RAISED.__traceback__ = None


@pytest.mark.parametrize("way", ["op", "torch op", "function mode", "grad", "eager graph", "scope"])
def test_the_exception_goes_through(op: Any, way: str) -> None:
    """The very exception comes out of every way of calling, with one note, and nothing else has run."""
    torch._dynamo.reset()
    with pytest.raises(KernelError) as caught:
        run(op, way)
    assert caught.value is RAISED
    assert caught.value.code == 700
    assert caught.value.__notes__ == [NOTE]  # type: ignore[attr-defined,unused-ignore]
    assert CALLS == ["broken"]


def run(op: Any, way: str) -> None:
    """Call an op."""
    if way == "op":
        op(X, None, 1e-5)
    elif way == "torch op":
        op.torch_op(X, None, 1e-5)
    elif way == "function mode":
        with torch.device("cpu"):
            op(X, None, 1e-5)
    elif way == "grad":
        op(X.clone().requires_grad_(), None, 1e-5)
    elif way == "eager graph":
        torch.fx.symbolic_trace(lambda x: op(x, None, 1e-5))(X)
    else:
        with op.set_priority("broken"):
            op(X, None, 1e-5)


def test_the_note_is_shown(op: Any) -> None:
    """A traceback ends with the note, and has the lines of the generated functions."""
    try:
        op(X, None, 1e-5)
    except KernelError as error:
        shown = "".join(traceback.format_exception(error))
    if sys.version_info >= (3, 11):
        assert shown.rstrip().endswith(NOTE)
    assert "<vllm_ir rms_norm>" in shown
    assert "raise RAISED" in shown


def test_the_next_call_may_succeed(op: Any) -> None:
    """A failure changes nothing: the same provider gets the next call."""
    for _ in range(2):
        with pytest.raises(KernelError):
            op(X, None, 1e-5)
    assert CALLS == ["broken", "broken"]
    op.set_default("behind")
    assert op(X, None, 1e-5) is X


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_no_exception_goes_through_bare(state: Runtime, error: type[BaseException]) -> None:
    """An interrupt gets no note."""
    assert state is not None

    def interrupted(
        x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> torch.Tensor:
        """Be interrupted."""
        del x, weight, epsilon, variance_size
        raise error

    ops.rms_norm.register_impl("interrupted")(interrupted)
    ops.rms_norm.set_default("interrupted")
    with pytest.raises(error) as caught:
        ops.rms_norm(X, None, 1e-5)
    assert not getattr(caught.value, "__notes__", [])


def test_half_written_inputs_stay_as_they_are(state: Runtime) -> None:
    """A kernel that fails after it wrote to a donated input is not followed by another."""
    assert state is not None
    op: Any = ops.fused_add_rms_norm

    def half(
        x: torch.Tensor,
        x_residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write to one input, then fail."""
        del x_residual, weight, epsilon, variance_size
        x.zero_()
        msg = "half way"
        raise RuntimeError(msg)

    op.register_impl("half", inplace=True)(half)
    op.set_default("half")
    x = torch.ones(2, 4)
    with pytest.raises(RuntimeError, match="half way"):
        op(x, x.clone(), None, 1e-5)
    assert torch.equal(x, torch.ones(2, 4))
    with pytest.raises(RuntimeError, match="half way"):
        op.maybe_inplace(x, x.clone(), None, 1e-5)
    assert torch.equal(x, torch.zeros(2, 4))


class Bare:
    """Something that takes notes as an exception of Python 3.10 does: not at all."""


def test_without_add_note() -> None:
    """Where exceptions have no add_note, the attribute is set that newer ones read."""
    error: Any = Bare()
    explain_failure(ops.rms_norm, error, (X, None, 1e-5, None), "broken")
    assert error.__notes__ == [NOTE]
    explain_failure(ops.rms_norm, error, (X, None, 1e-5, None), "broken")
    assert error.__notes__ == [NOTE]


def test_a_nested_op_keeps_both_notes(op: Any) -> None:
    """An op inside a kernel of another op: both are noted, inner first."""

    def nesting(x: torch.Tensor) -> torch.Tensor:
        """Call an op that fails."""
        return op(x, None, 1e-5)  # type: ignore[no-any-return]

    ops.silu_and_mul.register_impl("nesting")(nesting)
    ops.silu_and_mul.set_default("nesting")
    with pytest.raises(KernelError) as caught:
        ops.silu_and_mul(X)
    assert caught.value.__notes__ == [  # type: ignore[attr-defined,unused-ignore]
        NOTE,
        "while op 'silu_and_mul' ran on provider 'nesting'",
    ]


@pytest.mark.parametrize(
    ("arguments", "parameter", "wanted"),
    [
        ((1, None, 1e-5, None), "x", "a Tensor"),
        ((X, 1, 1e-5, None), "weight", "a Tensor or None"),
        ((X, None, "a", None), "epsilon", "float"),
        ((X, None, True, None), "epsilon", "float"),
        ((X, None, 1e-5, 1.5), "variance_size", "int or None"),
        ((X, None, 1e-5, True), "variance_size", "int or None"),
    ],
)
def test_the_first_argument_of_a_wrong_type(arguments: tuple[Any, ...], parameter: str, wanted: str) -> None:
    """The schema tells which argument is wrong, and a long value is cut short."""
    found = find_wrong_argument(ops.rms_norm, arguments)
    assert found is not None
    assert (found.op, found.parameter, found.wanted) == ("rms_norm", parameter, wanted)
    assert find_wrong_argument(ops.rms_norm, (X, None, 1, 4)) is None
    long = find_wrong_argument(ops.rms_norm, ("x" * 100, None, 1e-5, None))
    assert long is not None
    assert long.got == "str 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: ops.rms_norm(X, None, 1e-5, 4, 5),
            "rms_norm() takes from 3 to 4 positional arguments but 5 were given",
        ),
        (lambda: ops.silu_and_mul(X, 1, 2), "silu_and_mul() takes 1 positional argument but 3 were given"),
        (
            lambda: ops.fused_add_rms_norm.maybe_inplace(X, X, None, 1e-5, 4, 5, 6),
            "fused_add_rms_norm() takes from 4 to 5 positional arguments but 7 were given",
        ),
        (lambda: ops.rms_norm(X), "rms_norm() missing 2 required positional arguments: 'weight' and 'epsilon'"),
    ],
)
@pytest.mark.usefixtures("state")
def test_arguments_are_counted_as_the_caller_gave_them(call: Callable[[], Any], said: str, wrapped: bool) -> None:
    """The op itself is no argument of the call, whichever way tracers would see it."""
    with enable_torch_wrap(wrapped), pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == said


def test_an_op_shows_the_signature_of_its_meaning() -> None:
    """Editors and `inspect` see its parameters, and nothing of how a call is counted."""
    for call in (ops.fused_add_rms_norm, ops.fused_add_rms_norm.maybe_inplace):
        assert list(inspect.signature(call).parameters) == ["x", "x_residual", "weight", "epsilon", "variance_size"]


def test_a_kernel_given_a_wrong_type_says_so(op: Any) -> None:
    """Where the argument was wrong, the error says that, and carries the kernel's own as its cause."""
    with pytest.raises(WrongArgument, match="argument 'epsilon' is str 'small', wanted float") as caught:
        op(X, None, "small")
    assert caught.value.__cause__ is RAISED


def test_under_optimisation() -> None:
    """Under python -O a failure has its note as well."""
    script = (
        "import torch\n"
        "from torch import Tensor\n"
        "from vllm_ir import ops\n"
        "def broken(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:\n"
        "    raise ValueError('lost')\n"
        "ops.rms_norm.register_impl('broken')(broken)\n"
        "ops.rms_norm.set_default('broken')\n"
        "try:\n"
        "    ops.rms_norm(torch.ones(1, 2), None, 1e-5)\n"
        "except ValueError as error:\n"
        "    print(error, error.__notes__)\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f'lost ["{NOTE}"]'
