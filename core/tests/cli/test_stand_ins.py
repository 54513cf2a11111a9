"""Fake tensors for predicates: what they are told is what a call would tell them, and nothing is allocated."""

# ruff: noqa: ARG001 - predicates and kernels take all parameters of their op

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

import vllm_ir  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402
from vllm_ir import Unsupported  # noqa: E402
from vllm_ir.cli.arguments import TensorSpec, parse  # noqa: E402
from vllm_ir.cli.stand_ins import check_call, example, in_words, written  # noqa: E402
from vllm_ir.errors import CallError, MalformedArguments, WrongCall  # noqa: E402
from vllm_ir.isolation import isolated  # noqa: E402
from vllm_ir.landscape import Landscape  # noqa: E402

if TYPE_CHECKING:
    from vllm_ir.op import IrOp


def test_every_value_is_what_was_written() -> None:
    """Dtype, sizes, strides and device; the rest as it is."""
    given = parse("x=bf16[2,3:6,2],weight=f16[3],epsilon=0.5")
    x, weight, epsilon, variance_size = written(vllm_ir.ops.rms_norm, given, "cpu")
    assert (x.dtype, tuple(x.shape), x.stride(), x.device.type) == (torch.bfloat16, (2, 3), (6, 2), "cpu")
    assert (weight.dtype, weight.is_contiguous()) == (torch.float16, True)
    assert (epsilon, variance_size) == (0.5, None)
    assert all(isinstance(each, FakeTensor) for each in (x, weight))


def test_a_device_that_is_not_here_can_be_asked_about() -> None:
    """A fake tensor says it is on it."""
    (x,) = written(vllm_ir.ops.silu_and_mul, parse("x=f32[2,4]"), "cuda")
    assert x.device.type == "cuda"


def test_a_tensor_larger_than_any_memory() -> None:
    """A petabyte is asked about like a byte, and checked, too."""
    given = written(vllm_ir.ops.silu_and_mul, parse("x=bf16[1000000000,1000000]"), "cpu")
    check_call(vllm_ir.ops.silu_and_mul, given)
    assert given[0].numel() == 10**15


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("fp8", "float8_e4m3fn"),
        ("f8e4m3fnuz", "float8_e4m3fnuz"),
        ("torch.float8_e5m2", "float8_e5m2"),
        ("float8_e5m2", "float8_e5m2"),
        ("e5m2", "float8_e5m2"),
        ("torch.e4m3fn", "float8_e4m3fn"),
        ("bf16", "bfloat16"),
    ],
)
def test_a_dtype_is_written_by_its_name(text: str, dtype: str) -> None:
    """Where the op asks for a dtype, its name is one, and it is written back without torch's name before it."""
    given = written(vllm_ir.ops.static_quant_fp8, parse(f"x=bf16[2,3],scale=f32[1],dtype={text}"), "cpu")
    assert given[2] is getattr(torch, dtype)
    assert in_words(given[2]) == dtype


@pytest.mark.parametrize("text", ["e4m3", "e5m3", "half"])
def test_a_name_that_no_dtype_has_is_told_with_those_that_exist(text: str) -> None:
    """Where the op asks for a dtype a word is no text; e4m3 may be either of two, so it is neither."""
    with pytest.raises(MalformedArguments, match=f"{text!r} is no dtype.* There are float64 .* float8_e5m2 ") as caught:
        written(vllm_ir.ops.static_quant_fp8, parse(f"x=bf16[2,3],scale=f32[1],dtype={text}"), "cpu")
    assert caught.value.text == f"dtype={text}"


def test_a_name_of_a_dtype_can_be_a_text() -> None:
    """Where the op asks for a text it stays one."""
    given = written(vllm_ir.ops.gelu_and_mul, parse("x=bf16[2,4],approximate=bf16"), "cpu")
    assert given[1] == "bf16"


@pytest.mark.parametrize("text", ["bf16", "torch.bfloat16"])
def test_a_tensor_without_sizes(text: str) -> None:
    """A dtype alone is no tensor; the error quotes what was written and shows how it would be one."""
    with pytest.raises(MalformedArguments) as caught:
        written(vllm_ir.ops.rms_norm, parse(f"x={text},weight=none,epsilon=1"), "cpu")
    assert caught.value.text == f"x={text}"
    assert caught.value.reason == f"tensor 'x' has no sizes, write {text}[4,64]"


@pytest.mark.parametrize("spec", ["x=bf16[9999999999999999999]", "x=bf16[4611686018427387904,8]"])
def test_a_tensor_that_torch_cannot_even_describe(spec: str) -> None:
    """More elements than an integer holds are a description that cannot be read."""
    with pytest.raises(MalformedArguments, match="torch makes no such tensor"):
        written(vllm_ir.ops.silu_and_mul, parse(spec), "cpu")


def test_every_op_of_the_core_has_an_example_without_values() -> None:
    """Its generator runs on fake tensors."""
    for name in vllm_ir.ops.__all__:
        op = getattr(vllm_ir.ops, name)
        values = example(op, "cpu")
        check_call(op, values)
        assert any(isinstance(value, Tensor) for value in values)
        assert all(isinstance(value, FakeTensor) for value in values if isinstance(value, Tensor))


@pytest.mark.usefixtures("state")
def test_a_generator_that_reads_values_has_them() -> None:
    """It gets a few real ones, and what it made of them is asked about by fakes; so is one that knows no device."""

    @vllm_ir.register_op
    def picky(x: Tensor, size: int) -> Tensor:
        """Return x."""
        return x + size

    @picky.register_input_generator
    def inputs(num_tokens: int, device: str = "cpu") -> tuple[Tensor, int]:
        """Return numbers and their greatest."""
        x = torch.arange(num_tokens, device=device)
        return x, int(x.max())

    x, size = example(picky, "cuda")
    assert (x.device.type, size, isinstance(x, FakeTensor)) == ("cuda", 3, True)

    @picky.register_input_generator
    def without(num_tokens: int) -> tuple[Tensor, int]:
        """Return numbers."""
        return torch.ones(num_tokens, 2).t(), 1

    x, _ = example(picky, "cuda")
    assert (x.device.type, x.stride(), isinstance(x, FakeTensor)) == ("cuda", (1, 2), True)


def test_a_call_that_the_op_refuses() -> None:
    """Its own check says what is wrong."""
    op = vllm_ir.ops.rms_norm
    with pytest.raises(CallError, match=r"rms_norm\(\): argument 'weight'"):
        check_call(op, written(op, parse("x=f32[4,64],weight=f32[63],epsilon=1e-6"), "cpu"))


@pytest.mark.usefixtures("state")
def test_a_call_that_native_cannot_take() -> None:
    """Whatever it raises is a sentence, not a traceback."""

    @vllm_ir.register_op
    def product(x: Tensor, y: Tensor) -> Tensor:
        """Return the product of two matrices."""
        return x @ y

    with pytest.raises(WrongCall, match=r"product\(\): native cannot take it: RuntimeError: .*Its signature is"):
        check_call(product, written(product, parse("x=f32[2,3],y=f32[4,5]"), "cpu"))


@pytest.mark.parametrize("text", ["bfloat16[2,3]", "float32[2,3:6,2]", "float32[]", "float16[0,4]"])
def test_a_tensor_is_told_as_it_is_written(text: str) -> None:
    """What was asked with can be asked again."""
    (x,) = written(vllm_ir.ops.silu_and_mul, parse(f"x={text}"), "cpu")
    assert in_words(x) == text


def test_other_values_are_told_as_they_are_written() -> None:
    """Words are lower case."""
    assert [in_words(value) for value in (None, True, 1e-6, 3, "tanh")] == ["none", "true", "1e-06", "3", "tanh"]


def by_dtype(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Any:
    """Take half precision only."""
    good = x.dtype in (torch.float16, torch.bfloat16)
    return good or Unsupported(f"needs float16 or bfloat16, got {x.dtype}")


def by_layout(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Any:
    """Take contiguous rows of a multiple of four, with a weight of the same dtype."""
    if x.stride(-1) != 1 or not x.is_contiguous():
        return Unsupported(f"needs contiguous rows, got strides {tuple(x.stride())}")
    if x.shape[-1] % 4:
        return False
    if weight is not None and weight.dtype is not x.dtype:
        return Unsupported("needs a weight of x's dtype")
    return variance_size is None


def that_breaks(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Any:
    """Raise for a missing weight, and return no verdict for three dimensions."""
    if x.dim() == 3:
        return x.dim()
    assert weight is not None
    return weight.dtype is torch.float32 and not x.is_meta and x.device.type == "cpu"


PREDICATES = {"by_dtype": by_dtype, "by_layout": by_layout, "that_breaks": that_breaks}
DTYPES = st.sampled_from(["float32", "bfloat16", "float16", "float64"])


@st.composite
def calls(draw: st.DrawFn) -> str:
    """Return arguments of rms_norm as they are written, most of them such that native takes them."""
    hidden = draw(st.sampled_from([1, 3, 4, 8]))
    sizes = (*draw(st.lists(st.integers(0, 3), max_size=2)), hidden)
    contiguous: list[int] = []
    step = 1
    for size in reversed(sizes):
        contiguous.insert(0, step)
        step *= max(size, 1)
    strides = draw(st.sampled_from([None, tuple(contiguous), tuple(2 * each for each in contiguous)]))
    x = TensorSpec(draw(DTYPES), sizes, strides)
    weight = draw(st.none() | st.builds(TensorSpec, DTYPES, st.just((hidden,))))
    variance_size = draw(st.sampled_from(["none", "1"]))
    return f"x={x},weight={'none' if weight is None else weight},epsilon=1e-6,variance_size={variance_size}"


def real(op: IrOp, text: str) -> list[Any]:
    """Return the values of a call with memory behind them."""
    made = []
    for value in written(op, parse(text), "cpu"):
        if isinstance(value, Tensor):
            made.append(torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype))
        else:
            made.append(value)
    return made


def make_kernel(name: str, ran: list[str]) -> Any:
    """Return a kernel that notes that it ran."""

    def kernel(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
        """Note who ran."""
        ran.append(name)
        result: Tensor = torch.empty(x.shape, dtype=x.dtype)
        return result

    return kernel


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    text=calls(), order=st.permutations([*PREDICATES, "native"]), denied=st.sets(st.sampled_from([*PREDICATES]))
)
def test_what_is_explained_with_fakes_is_what_a_real_call_runs(text: str, order: list[str], denied: set[str]) -> None:
    """Every verdict with its reason, and the one that is selected; who is denied for the op runs nothing."""
    op, ran = vllm_ir.ops.rms_norm, list[str]()
    variables = {"VLLM_IR_PROVIDERS_DISABLED": ",".join(f"{name}:rms_norm" for name in sorted(denied))}
    landscape = Landscape(provider_defaults={False: {"rms_norm": tuple(order)}})
    with isolated(variables, landscape=landscape):
        for name, predicate in PREDICATES.items():
            op.register_impl(name, supports_args=predicate)(make_kernel(name, ran))
        told = op.explain(*written(op, parse(text), "cpu"))
        again = op.explain(*real(op, text))
        selected = op.dispatch(*real(op, text)).provider
        op(*real(op, text))
    assert told == again
    assert told.selected == selected
    assert (ran or ["native"]) == [selected]
    assert selected not in denied
