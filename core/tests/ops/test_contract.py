"""What holds for every op of core: generators, tolerances, fakes, wrong arguments, torch's own checks of an op."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from vllm_ir import ops
from vllm_ir.errors import CallError, WrongArgument, WrongCall
from vllm_ir.ops.quantization import FP8_MAX
from vllm_ir.tolerances import comparable

NAMES = tuple(ops.__all__)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EXACT = ("static_quant_fp8", "dynamic_quant_fp8", "dynamic_group_quant_fp8")


def results_of(outcome: Any) -> tuple[Tensor, ...]:
    """Return results as a tuple."""
    return tuple(outcome) if isinstance(outcome, (tuple, list)) else (outcome,)


def dtypes_of(name: str, dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """Return the dtypes of an op's results, as its name says: 8-bit values, scales, a residual of the inputs' dtype."""
    if "quant_fp8" not in name:
        count = 2 if name.startswith(("fused_", "rotary_")) else 1
        return (dtype,) * count
    scales = () if "static" in name else (torch.float32,)
    return (torch.float8_e4m3fn, *scales, *((dtype,) if name.startswith("fused_add") else ()))


def assert_close(mine: Tensor, theirs: Tensor) -> None:
    """Compare as torch's own function does; it takes 8-bit floats only bit for bit."""
    torch.testing.assert_close(comparable(mine), comparable(theirs))


def meta_of(outcome: Any) -> list[tuple[Any, ...]]:
    """Return shape, dtype and strides of each result."""
    return [(tuple(result.shape), result.dtype, result.stride()) for result in results_of(outcome)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_tokens", [0, 1, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", [None, "cpu", "meta"])
def test_generator(name: str, num_tokens: int, dtype: torch.dtype, device: str | None) -> None:
    """Every generator makes one call's arguments for any number of tokens, dtype and device, and the op takes them."""
    op = getattr(ops, name)
    arguments = op.generate_inputs(num_tokens=num_tokens, hidden_size=32, dtype=dtype, device=device)
    tensors = [value for value in arguments if isinstance(value, Tensor)]
    assert {tensor.device.type for tensor in tensors} == {device or "cpu"}
    activations = [op.bind(arguments, {})[i] for i in op.activation_indices]
    assert all(x.shape[0] == num_tokens and x.dtype is dtype for x in activations)
    results = results_of(op(*arguments))
    assert tuple(result.dtype for result in results) == dtypes_of(name, dtype)
    assert all(result.shape[0] == num_tokens for result in results)


@pytest.mark.parametrize("name", NAMES)
def test_generators_are_random(name: str) -> None:
    """Two calls of a generator give different rows, and a seed gives the same again."""
    op = getattr(ops, name)
    index = op.activation_indices[0]
    torch.manual_seed(3)
    first, second = (op.generate_inputs(num_tokens=4)[index] for _ in range(2))
    torch.manual_seed(3)
    assert not torch.equal(first, second)
    assert torch.equal(first, op.generate_inputs(num_tokens=4)[index])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tolerance(name: str, dtype: torch.dtype) -> None:
    """A tolerance admits a step in the last place and refuses one percent; that of an exact op admits nothing."""
    bounds = getattr(ops, name).get_tolerance(dtype)
    value = torch.full((8,), 1.0, dtype=dtype)
    if name in EXACT and dtype == torch.float32:
        assert bounds == {"atol": 0, "rtol": 0}
        assert all(getattr(ops, name).get_tolerance(narrow) == bounds for narrow in FP8_MAX)
    else:
        torch.testing.assert_close(value + torch.finfo(dtype).eps, value, **bounds)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(value * 1.05, value, **bounds)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_tokens", [0, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fake_and_meta_agree_with_real(name: str, num_tokens: int, dtype: torch.dtype, lay: Any) -> None:
    """Fake, meta and real results have one shape, dtype and strides, in every layout of the activations."""
    op = getattr(ops, name)
    arguments = list(op.generate_inputs(num_tokens=num_tokens, hidden_size=32, dtype=dtype))
    for i in op.activation_indices:
        arguments[i] = lay(arguments[i])
    overloads = [op, op.torch_op, *([op.maybe_inplace, op.maybe_inplace.torch_op] if op.allow_inplace else [])]
    wanted = meta_of(op.declaration.native(*arguments))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) if isinstance(value, Tensor) else value for value in arguments]
    metas = [value.to("meta") if isinstance(value, Tensor) else value for value in arguments]
    for overload in overloads:
        assert meta_of(overload(*arguments)) == wanted
        assert meta_of(overload(*metas)) == wanted
        with mode:
            assert meta_of(overload(*fakes)) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_no_native_looks_at_the_number_of_tokens(name: str) -> None:
    """Exported with a number of tokens that nobody knows, a native guards on nothing."""
    op = getattr(ops, name)
    arguments = op.generate_inputs(num_tokens=4)
    # A dtype is no input of an exported module; it belongs to the module, as the rest of what is not a tensor could.
    dtypes = tuple(value for value in arguments if isinstance(value, torch.dtype))
    arguments = arguments[: len(arguments) - len(dtypes)]
    batched = [isinstance(v, Tensor) and v.dim() > 0 and v.shape[0] == 4 and v.shape[0] != 64 for v in arguments]

    class Native(torch.nn.Module):
        """A module that runs native itself, not the op."""

        def forward(self, *values: Any) -> Any:
            """Run native."""
            return op.declaration.native(*values, *dtypes)

    batch = torch.export.Dim("batch", min=0)
    shapes = (tuple({0: batch} if is_batched else None for is_batched in batched),)
    exported = torch.export.export(Native(), arguments, dynamic_shapes=shapes)
    for num_tokens in (0, 1, 9):
        fresh = op.generate_inputs(num_tokens=num_tokens)[: len(arguments)]
        for mine, theirs in zip(results_of(exported.module()(*fresh)), results_of(Native()(*fresh)), strict=True):
            assert_close(mine, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str) -> None:
    """Torch's own checks of schema, fake, autograd and AOT pass for the functional overload."""
    op = getattr(ops, name)
    arguments = op.generate_inputs(num_tokens=3, hidden_size=32)
    # One of the checks sums results, and torch has no sum of 8-bit floats: of those it looks without a gradient.
    if "quant_fp8" not in name:
        for i in op.activation_indices:
            arguments[i].requires_grad_()
    torch.library.opcheck(op.torch_op, arguments)
    cheap = ("test_schema", "test_autograd_registration", "test_faketensor")
    empty = op.generate_inputs(num_tokens=0, hidden_size=32, dtype=torch.bfloat16)
    torch.library.opcheck(op.torch_op, empty, test_utils=cheap)
    if op.allow_inplace:
        torch.library.opcheck(op.maybe_inplace.torch_op, empty, test_utils=cheap)


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong call.

    Attributes:
        op: the op's name.
        arguments: its arguments.
        parameter: which of them is wrong; None when the call does not fit the signature.
        typed: whether its type is not the schema's, which torch would refuse by itself.
    """

    op: str
    arguments: tuple[Any, ...]
    parameter: str | None
    typed: bool = False


X, W, INTEGERS = torch.ones(2, 4), torch.ones(4), torch.ones(2, 4, dtype=torch.int64)
ONE = torch.ones(1)
POSITIONS, CACHE = torch.zeros(2, dtype=torch.int64), torch.ones(3, 4)
WRONG = (
    Wrong("rms_norm", (INTEGERS, W, 1e-5), "x"),
    Wrong("rms_norm", (torch.tensor(1.0), None, 1e-5), "x"),
    Wrong("rms_norm", (X, torch.ones(3), 1e-5), "weight"),
    Wrong("rms_norm", (X, torch.ones(1, 4), 1e-5), "weight"),
    Wrong("rms_norm", (X, torch.ones(4, dtype=torch.int64), 1e-5), "weight"),
    Wrong("rms_norm", (X, W, 1e-5, 0), "variance_size"),
    Wrong("rms_norm", (X, W, 1e-5, 5), "variance_size"),
    Wrong("rms_norm", ([1.0], W, 1e-5), "x", typed=True),
    Wrong("rms_norm", (X, "w", 1e-5), "weight", typed=True),
    Wrong("rms_norm", (X, W, "small"), "epsilon", typed=True),
    Wrong("rms_norm", (X, W, 1e-5, 2.5), "variance_size", typed=True),
    Wrong("rms_norm", (None, W, 1e-5), "x", typed=True),
    Wrong("fused_add_rms_norm", (INTEGERS, X, W, 1e-5), "x"),
    Wrong("fused_add_rms_norm", (X, X.bfloat16(), W, 1e-5), "x_residual"),
    Wrong("fused_add_rms_norm", (X, torch.ones(2, 5), W, 1e-5), "x_residual"),
    Wrong("fused_add_rms_norm", (X, torch.ones(4), W, 1e-5), "x_residual"),
    Wrong("fused_add_rms_norm", (X, X, torch.ones(5), 1e-5), "weight"),
    Wrong("fused_add_rms_norm", (X, X, W, 1e-5, 9), "variance_size"),
    Wrong("fused_add_rms_norm", (X, None, W, 1e-5), "x_residual", typed=True),
    Wrong("silu_and_mul", (INTEGERS,), "x"),
    Wrong("silu_and_mul", (torch.ones(2, 3),), "x"),
    Wrong("silu_and_mul", (torch.tensor(1.0),), "x"),
    Wrong("silu_and_mul", ("x",), "x", typed=True),
    Wrong("gelu_and_mul", (INTEGERS,), "x"),
    Wrong("gelu_and_mul", (torch.ones(2, 3),), "x"),
    Wrong("gelu_and_mul", (X, "sigmoid"), "approximate"),
    Wrong("gelu_and_mul", (X, 1), "approximate", typed=True),
    Wrong("rotary_embedding", (torch.zeros(2), X, X, 4, 4, CACHE, True), "positions"),
    Wrong("rotary_embedding", (POSITIONS.bool(), X, X, 4, 4, CACHE, True), "positions"),
    Wrong("rotary_embedding", (POSITIONS, INTEGERS, X, 4, 4, CACHE, True), "query"),
    Wrong("rotary_embedding", (POSITIONS, X, INTEGERS, 4, 4, CACHE, True), "key"),
    Wrong("rotary_embedding", (POSITIONS, torch.ones(2, 6), X, 4, 4, CACHE, True), "query"),
    Wrong("rotary_embedding", (POSITIONS, X, X, 4, 3, torch.ones(3, 3), True), "rotary_dim"),
    Wrong("rotary_embedding", (POSITIONS, X, X, 4, 6, torch.ones(3, 6), True), "rotary_dim"),
    Wrong("rotary_embedding", (POSITIONS, X, X, 4, 4, torch.ones(3, 2), True), "cos_sin_cache"),
    Wrong("rotary_embedding", (POSITIONS, X, X, 4, 4, "cache", True), "cos_sin_cache", typed=True),
    Wrong("rotary_embedding", (POSITIONS, X, X, 4.5, 4, CACHE, True), "head_size", typed=True),
    Wrong("static_quant_fp8", (INTEGERS, ONE), "x"),
    Wrong("static_quant_fp8", (torch.tensor(1.0), ONE), "x"),
    Wrong("static_quant_fp8", (X, ONE.double()), "scale"),
    Wrong("static_quant_fp8", (X, torch.ones(2)), "scale"),
    Wrong("static_quant_fp8", (X, torch.ones(1, 4)), "scale"),
    Wrong("static_quant_fp8", (X, ONE, torch.float16), "dtype"),
    Wrong("static_quant_fp8", (X, ONE, torch.uint8), "dtype"),
    Wrong("static_quant_fp8", (X, 1.0), "scale", typed=True),
    Wrong("static_quant_fp8", (X, ONE, "float8_e4m3fn"), "dtype", typed=True),
    Wrong("static_quant_fp8", (X, ONE, None), "dtype", typed=True),
    Wrong("dynamic_quant_fp8", (INTEGERS,), "x"),
    Wrong("dynamic_quant_fp8", (torch.ones(2, 0),), "x"),
    Wrong("dynamic_quant_fp8", (X, True, torch.ones(4)), "scale_ub"),
    Wrong("dynamic_quant_fp8", (X, True, ONE.half()), "scale_ub"),
    Wrong("dynamic_quant_fp8", (X, False, None, torch.bfloat16), "dtype"),
    Wrong("dynamic_quant_fp8", (X, True, 4.0), "scale_ub", typed=True),
    Wrong("dynamic_group_quant_fp8", (INTEGERS, 2), "x"),
    Wrong("dynamic_group_quant_fp8", (X, 3), "group_size"),
    Wrong("dynamic_group_quant_fp8", (X, 8), "group_size"),
    Wrong("dynamic_group_quant_fp8", (X, 0), "group_size"),
    Wrong("dynamic_group_quant_fp8", (X, -2), "group_size"),
    Wrong("dynamic_group_quant_fp8", (X, 2, False, False, torch.int8), "dtype"),
    Wrong("dynamic_group_quant_fp8", (X, 2.0), "group_size", typed=True),
    Wrong("rms_norm", (X,), None),
    Wrong("rms_norm", (X, W, 1e-5, None, 3), None),
    Wrong("silu_and_mul", (), None),
)


def told(wrong: Wrong, call: Any) -> list[str | None]:
    """Return the class of the error that a wrong call raises, with op and parameter."""
    try:
        call(*wrong.arguments)
    except CallError as error:
        return [type(error).__name__, getattr(error, "op", None), getattr(error, "parameter", None)]
    except TypeError as error:
        return [type(error).__name__, wrong.op if wrong.op in str(error) else None, None]
    return ["nothing", None, None]


def calls_of(name: str) -> list[Any]:
    """Return an op, and its `maybe_inplace` if it has one."""
    op = getattr(ops, name)
    return [op, *([op.maybe_inplace] if op.allow_inplace else [])]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: f"{w.op}-{w.parameter}")
def test_a_wrong_call_says_op_and_parameter(wrong: Wrong) -> None:
    """Op and `maybe_inplace` raise an error that names op and parameter, on meta tensors and in a mode as well."""
    wanted = ["TypeError" if wrong.parameter is None else "WrongArgument", wrong.op, wrong.parameter]
    metas = Wrong(
        wrong.op, tuple(v.to("meta") if isinstance(v, Tensor) else v for v in wrong.arguments), wrong.parameter
    )
    for call in calls_of(wrong.op):
        assert told(wrong, call) == wanted
        assert told(metas, call) == wanted
        with torch.device("cpu"):
            assert told(wrong, call) == wanted


@pytest.mark.parametrize(
    "wrong", [w for w in WRONG if w.parameter and not w.typed], ids=lambda w: f"{w.op}-{w.parameter}"
)
def test_a_wrong_call_of_the_torch_op(wrong: Wrong) -> None:
    """The torch op raises the same where the types are those of its schema."""
    for call in calls_of(wrong.op):
        assert told(wrong, call.torch_op) == ["WrongArgument", wrong.op, wrong.parameter]


def test_a_wrong_call_reads_well() -> None:
    """The sentence says op, parameter, what was got and what is wanted."""
    with pytest.raises(WrongArgument) as caught:
        ops.rms_norm(X, torch.ones(3), 1e-5)
    assert str(caught.value) == (
        "rms_norm(): argument 'weight' is of shape (3,), wanted shape (4,), the size of a row."
    )
    with pytest.raises(WrongCall, match=r"rms_norm\(\): missing a required argument: 'weight'"):
        ops.rms_norm.dispatch(X)


def test_without_asserts() -> None:
    """Under python -O every wrong call raises the same."""
    script = (
        "import sys, json, runpy\n"
        f"names = runpy.run_path({__file__!r})\n"
        "told, calls = names['told'], names['calls_of']\n"
        "print(json.dumps([[told(w, c) for c in calls(w.op)] for w in names['WRONG']]))"
    )
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[told(wrong, call) for call in calls_of(wrong.op)] for wrong in WRONG]
    assert all(answer[0] != "nothing" for answers in json.loads(done.stdout) for answer in answers)


NUMBERS = tuple(
    (name, parameter)
    for name in NAMES
    for parameter, word in zip(
        getattr(ops, name).declaration.signature.names, getattr(ops, name).declaration.types.words, strict=True
    )
    if word in ("int", "Optional[int]")
)


@pytest.mark.parametrize(("name", "parameter"), NUMBERS)
@pytest.mark.parametrize("value", [True, "8", 8.0], ids=repr)
def test_a_whole_number_is_nothing_else(
    name: str, parameter: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """True is 1 for Python, and neither a text nor a fraction is a size; eager, by the torch op and on fakes."""
    op = getattr(ops, name)
    arguments = list(op.bind(op.generate_inputs(num_tokens=2, hidden_size=32), {}))
    arguments[op.declaration.signature.names.index(parameter)] = value
    word = "int or None" if parameter == "variance_size" else "int"
    said = f"{name}(): argument {parameter!r} is {type(value).__name__} {value!r}, wanted {word}."
    for call in (op, op.declaration.native) if value is True else (op,):
        with pytest.raises(WrongArgument) as caught:
            call(*arguments)
        assert str(caught.value) == said.replace(" or None", "" if call is not op else " or None")
    assert not [record for record in caplog.records if "supports_args raised" in record.getMessage()]


def test_numbers_are_of_every_op_that_has_one() -> None:
    """What the test before goes over is read off the ops, so a new one is in it."""
    assert {name for name, _ in NUMBERS} >= {
        "rms_norm",
        "fused_add_rms_norm",
        "rotary_embedding",
        "fused_qk_norm_rope",
        "dynamic_group_quant_fp8",
        "silu_and_mul_group_quant_fp8",
    }
