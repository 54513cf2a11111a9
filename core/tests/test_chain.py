"""What a chain does around an implementation: copies for those that write, devices, the next one after a refusal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from vllm_ir import Unsupported, errors
from vllm_ir.chain import Step, make_chain, make_plain_chain
from vllm_ir.isolation import isolated
from vllm_ir.landscape import Landscape
from vllm_ir.platforms import Platform
from vllm_ir.staging import transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.op import IrOp, IrOpInplace


def add_pair(x: torch.Tensor, weight: torch.Tensor, x_residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a scaled sum, and the sum."""
    total = x + x_residual
    return total * weight, total.contiguous()


def writing(x: torch.Tensor, weight: torch.Tensor, x_residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same into both activations."""
    x_residual.add_(x)
    torch.mul(x_residual, weight, out=x)
    return x, x_residual


def never(x: torch.Tensor, weight: torch.Tensor, x_residual: torch.Tensor) -> Unsupported:
    """Refuse."""
    del x, weight, x_residual
    return Unsupported("never")


def make_op(**declared: Any) -> IrOpInplace:
    """Register the op with one implementation that writes."""
    op = vllm_ir.register_op(name="add_pair", allow_inplace=True)(add_pair)
    op.register_impl("writer", inplace=True, **declared)(writing)
    return op


def strided() -> torch.Tensor:
    """Return every second column of a larger tensor."""
    return torch.randn(4, 16)[:, ::2]


def transposed() -> torch.Tensor:
    """Return a tensor whose first dimension is the dense one."""
    return torch.randn(8, 4).t()


def expanded() -> torch.Tensor:
    """Return one row seen four times."""
    return torch.randn(1, 8).expand(4, 8)


def shifted() -> torch.Tensor:
    """Return a view that begins in the middle of its storage."""
    return torch.randn(5, 8)[1:]


def dense() -> torch.Tensor:
    """Return a contiguous tensor."""
    return torch.randn(4, 8)


LAYOUTS = [dense, strided, transposed, expanded, shifted]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("make", LAYOUTS)
@pytest.mark.parametrize("way", ["eager", "torch", "func_impl_fn", "keywords"])
def test_the_default_overload_never_changes_an_input(make: Callable[[], torch.Tensor], way: str) -> None:
    """An in-place implementation writes to contiguous copies, whatever the strides; results share nothing."""
    op = make_op()
    op.set_default(["writer"])
    x, residual, weight = make(), make(), torch.randn(8)
    kept = (x.clone(), residual.clone(), weight.clone())
    impl = op.impls["writer"]
    calls: dict[str, Callable[[], Any]] = {
        "eager": lambda: op(x, weight, residual),
        "torch": lambda: op.torch_op(x, weight, residual),
        "func_impl_fn": lambda: impl.func_impl_fn(x, weight, residual),
        "keywords": lambda: impl.func_impl_fn(x, x_residual=residual, weight=weight),
    }
    results = calls[way]()
    for now, before in zip((x, residual, weight), kept, strict=True):
        assert torch.equal(now, before)
    for result, expected in zip(results, add_pair(*kept[:1], kept[2], kept[1]), strict=True):
        torch.testing.assert_close(result, expected)
        assert result.is_contiguous()
        assert result.untyped_storage().data_ptr() not in {
            t.untyped_storage().data_ptr() for t in (x, residual, weight)
        }


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("make", [dense, strided, transposed, shifted])
def test_maybe_inplace_donates_the_activations(make: Callable[[], torch.Tensor]) -> None:
    """The results are the activations themselves, and the weight is nobody's to write to."""
    op = make_op()
    op.set_default(["writer"])
    x, residual, weight = make(), make(), torch.randn(8)
    expected = add_pair(x.clone(), weight, residual.clone())
    kept = weight.clone()
    results = op.maybe_inplace(x, weight, residual)
    assert [result.data_ptr() for result in results] == [x.data_ptr(), residual.data_ptr()]
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted)
    assert torch.equal(weight, kept)


@pytest.mark.usefixtures("state")
def test_maybe_inplace_without_an_in_place_implementation_is_functional() -> None:
    """Donation is a permission: native leaves the activations as they were."""
    op = make_op()
    x, residual, weight = dense(), dense(), torch.randn(8)
    kept = (x.clone(), residual.clone())
    op.maybe_inplace(x, weight, residual)
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])


def test_donating_and_functional_calls_count_alike() -> None:
    """One provider, one count, whichever overload was called."""
    with isolated({"VLLM_IR_COUNTERS": "1"}):
        op = make_op()
        op.set_default(["writer"])
        op(dense(), torch.ones(8), dense())
        op.maybe_inplace(dense(), torch.ones(8), dense())
        assert vllm_ir.report().ops["add_pair"].calls == {"writer": 2}


@pytest.mark.usefixtures("state")
def test_a_refused_in_place_implementation_has_touched_nothing() -> None:
    """The predicate comes before the copies, so the next candidate sees what the caller gave."""
    op = make_op(supports_args=never)
    op.set_default(["writer"])
    x, residual, weight = dense(), dense(), torch.randn(8)
    expected = add_pair(x, weight, residual)
    for result, wanted in zip(op.maybe_inplace(x, weight, residual), expected, strict=True):
        assert torch.equal(result, wanted)


def device_platform(device_type: str) -> Platform:
    """Return a machine with one more device type than the CPU."""
    return Platform(name="future", device_type=device_type)


def devices_op() -> IrOp:
    """Register an op with a required and an optional tensor."""

    def on_device(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        """Return zeros like x."""
        del weight
        return torch.zeros_like(x)

    return vllm_ir.register_op(on_device)


def ones_like(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Return ones like x."""
    del weight
    return torch.ones_like(x)


@pytest.mark.parametrize(
    ("devices", "machine", "runs"),
    [
        (frozenset({"cpu"}), "cpu", True),
        (frozenset({"cpu"}), "cuda", True),
        (frozenset({"cpu", "cuda"}), "cuda", True),
        (frozenset({"cuda"}), "cuda", False),
        (frozenset({"cuda"}), "cpu", False),
        (frozenset({"future"}), "future", False),
        (None, "cuda", True),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_tensor_goes_only_where_its_device_is_taken(
    devices: frozenset[str] | None, machine: str, runs: bool, named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel for another device never sees a CPU tensor; `explain` and `dispatch` say so, too."""
    landscape = Landscape(
        platform=device_platform(machine), provider_defaults={} if named else {False: {"on_device": ("kernel",)}}
    )
    with isolated(landscape=landscape):
        op = devices_op()
        with transaction("some-distribution", devices):
            op.register_impl("kernel")(ones_like)
        if named:
            op.set_default(["kernel"])
        x = torch.full((2,), 5.0)
        ran = "kernel" if op(x)[0].item() == 1.0 else "native"
        explained = op.explain(x, torch.ones(1))
        assert op.dispatch(x).provider == ran
    assert ran == explained.selected == ("kernel" if runs else "native")
    words = f"its kernels take {' or '.join(sorted(devices or ()))} tensors, got a cpu tensor"
    assert explained.verdicts[0].reason == (None if runs else words)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == (
        [f"op on_device: provider kernel, named by set_default, refuses: {words}. The next one takes the call."]
        if named and not runs
        else []
    )


def test_strict_mode_raises_for_a_foreign_device() -> None:
    """A named provider whose kernels take other devices has refused the call like any other."""
    with isolated({"VLLM_IR_STRICT": "1"}, landscape=Landscape(platform=device_platform("cuda"))):
        op = devices_op()
        with transaction("some-distribution", frozenset({"cuda"})):
            op.register_impl("kernel")(ones_like)
        op.set_default(["kernel"])
        with pytest.raises(errors.RefusedArguments, match="its kernels take cuda tensors, got a cpu tensor"):
            op(torch.ones(2))


def step(**parts: Any) -> Step:
    """Return a candidate of a chain, unconditional unless it says otherwise."""
    whole: dict[str, Any] = {
        "function": lambda x, weight: ("ran", x, weight),
        "predicate": None,
        "device": None,
        "foreign": lambda *_: Unsupported("elsewhere"),
        "copied": (),
        "refused": lambda _: None,
        "raised": lambda error: Unsupported(str(error)),
        "counted": None,
        "seen": None,
        "told": [],
    }
    return Step(**{**whole, **parts})


def test_every_tensor_is_asked_for_its_device() -> None:
    """One tensor on a foreign device is enough, and the refusal goes where refusals go."""
    told: list[object] = []
    here, there = SimpleNamespace(is_cuda=True), SimpleNamespace(is_cuda=False)
    asked = step(device="(x.is_cuda) and (weight is None or weight.is_cuda)", seen=set(), refused=told.append)
    chain = make_chain("asked", ("x", "weight"), [asked], lambda *_: "exhausted")
    assert chain(here, None)[0] == "ran"
    assert chain(here, here)[0] == "ran"
    assert told == []
    assert chain(here, there) == "exhausted"
    assert chain(there, None) == "exhausted"
    assert told == [Unsupported("elsewhere")] * 2


def test_an_unconditional_candidate_is_the_chain() -> None:
    """Nothing stands between a call and the only implementation that may run."""
    only = step()
    assert make_chain("direct", ("x", "weight"), [only, step()], lambda *_: None) is only.function


def test_no_candidate_is_an_exhausted_chain() -> None:
    """Both chains hand the arguments to whoever raises."""
    for make in (make_chain, make_plain_chain):
        assert make("empty", ("x", "weight"), [], lambda *args: args)(1, 2) == (1, 2)


def test_the_plain_chain_agrees_with_the_chain() -> None:
    """What Dynamo traces asks the same questions in the same order, without telling anyone."""
    steps = [
        step(predicate=lambda x, weight: x > 1 and weight, function=lambda *_: "first"),
        step(device="x == 1", function=lambda *_: "second"),
        step(predicate=lambda *_: Unsupported("no"), function=lambda *_: "third"),
        step(function=lambda *_: "last"),
    ]
    for x in (0, 1, 2):
        for weight in (True, False):
            results = {
                make("agree", ("x", "weight"), steps, lambda *_: None)(x, weight)
                for make in (make_chain, make_plain_chain)
            }
            assert len(results) == 1, (x, weight, results)
