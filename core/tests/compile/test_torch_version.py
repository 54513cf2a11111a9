"""What torch's versions differ in: each way is run, with the differing part of torch put in place or taken away."""

from __future__ import annotations

import contextlib
import pickle
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir import dispatch  # noqa: E402 - after the check for torch
from vllm_ir.compile import torch_sizes, torch_version  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def open_size() -> Any:
    """Give a fake tensor [n, 8] whose n is open."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    return mode.from_tensor(torch.ones(4, 8), symbolic_context=context)


@pytest.fixture(params=["2.11", "2.12"])
def guard_era(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let torch offer a way to refuse guards, as from 2.12 on, or none."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    wanted: str = request.param
    if wanted == "2.11":
        monkeypatch.delattr(ShapeEnv, "error_on_new_guards", raising=False)
    elif not hasattr(ShapeEnv, "error_on_new_guards"):
        pytest.skip("needs ShapeEnv.error_on_new_guards, which this torch lacks")
    return wanted


def test_a_question_about_an_open_size_raises(open_size: Any, guard_era: str) -> None:
    """It names the guard, adds none, and is known for what it is where predicates are judged."""
    shape_env = torch_version.shape_env_of(open_size)
    size = open_size.shape[0]
    with pytest.raises(RuntimeError) as caught, torch_version.no_new_guards(shape_env):
        bool(size == 4)
    assert str(size.node.expr) in str(caught.value), guard_era
    assert isinstance(dispatch.read_exception(caught.value), dispatch.GuardingPredicate)
    assert shape_env.guards == []


def test_what_needs_no_guard_may_be_asked(open_size: Any, guard_era: str) -> None:
    """A known size, and what holds for every size, are answered."""
    with torch_version.no_new_guards(torch_version.shape_env_of(open_size)):
        assert open_size.shape[1] == 8, guard_era
        assert open_size.shape[0] == open_size.shape[0]
        assert open_size.shape[0] >= 0


def test_afterwards_guards_are_added_again(open_size: Any, guard_era: str) -> None:
    """The environment of the graph is left as it was, also from inside another such block and after an error."""
    shape_env = torch_version.shape_env_of(open_size)
    with torch_version.no_new_guards(shape_env):
        with contextlib.suppress(RuntimeError), torch_version.no_new_guards(shape_env):
            bool(open_size.shape[0] == 4)
        with pytest.raises(RuntimeError):
            bool(open_size.shape[0] == 4)
    assert open_size.shape[0] == 4, guard_era
    assert len(shape_env.guards) == 1


def test_without_symbols_nothing_is_refused() -> None:
    """A graph of known sizes has no such environment."""
    assert torch_version.shape_env_of(torch.ones(1)) is None
    with torch_version.no_new_guards(None):
        assert torch.ones(1).shape[0] == 1


@pytest.mark.parametrize(
    ("version", "read", "on_cpu"),
    [
        ("2.11.0", (2, 11), False),
        ("2.12.1+cpu", (2, 12), False),
        ("2.13.0+cpu", (2, 13), True),
        ("2.14.0a0+git1234", (2, 14), True),
    ],
)
def test_the_cpu_keeps_roundings_from_2_13_on(
    version: str, read: tuple[int, int], *, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton keeps them in every version, and of a device that is not torch's own nobody knows."""
    monkeypatch.setattr(torch, "__version__", version)
    assert torch_version.version() == read
    assert torch_version.honours_roundings("cpu") is on_cpu
    assert torch_version.honours_roundings("cuda")
    assert not torch_version.honours_roundings("npu")


def test_the_table_follows_the_configuration() -> None:
    """Who wants eager's random numbers gets a table that leaves them whole, and nobody else does."""
    before = torch_version.decompositions()
    patched = torch_version.decompositions({"fallback_random": True})
    assert torch.ops.aten.rand_like.default in before
    assert torch.ops.aten.rand_like.default not in patched
    assert torch_version.decompositions().keys() == before.keys()


def test_the_table_may_be_changed() -> None:
    """It is a copy: torch caches its own."""
    torch_version.decompositions().clear()
    assert torch_version.decompositions()


@contextlib.contextmanager
def unwatched(*, backward: bool) -> Iterator[None]:
    """Stand for who wants to know of every graph."""
    assert backward in (True, False)
    yield


@pytest.mark.parametrize("era", ["2.11", "2.12", "2.13"])
def test_no_key_holds_the_table(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.12 hands on a function that cannot be pickled, 2.13 and 2.14 the table itself, 2.11 nothing."""
    from torch._inductor import compile_fx as module

    got: dict[str, Any] = {}

    def compile_fx(model: Any, inputs: Any, **kwargs: Any) -> Any:
        """Stand for torch's: it compiles one graph."""
        given = kwargs["decompositions"]
        ways: dict[str, dict[str, Any]] = {
            "2.11": {},
            "2.12": {"get_decomp_fn": lambda: given},
            "2.13": {"get_decomp_fn": given},
        }
        return kwargs["inner_compile"](model, inputs, is_inference=True, **ways[era])

    def compile_fx_inner(*_: Any, **kwargs: Any) -> str:
        """Stand for torch's: it notes what it gets."""
        got.update(kwargs)
        return "compiled"

    monkeypatch.setattr(module, "compile_fx", compile_fx)
    monkeypatch.setattr(module, "compile_fx_inner", compile_fx_inner)
    table = {torch.ops.aten.mul.Tensor: print}
    nobody: Any = None
    made: Any = torch_version.compile_with_inductor(nobody, [], {}, table, unwatched)
    assert made == "compiled"
    assert ("get_decomp_fn" in got) is (era != "2.11")
    if era != "2.11":
        assert got["get_decomp_fn"]() == table
        assert pickle.loads(pickle.dumps(got["get_decomp_fn"])) == "vllm_ir"  # noqa: S301 - the test's own bytes


def test_the_configuration_that_keeps_roundings_exists() -> None:
    """Every supported version has it, and the modes of torch.compile as options."""
    assert all(map(torch_version.is_inductor_option, torch_version.EXACT))
    assert not torch_version.is_inductor_option("no_such_option")
    assert torch_version.is_inductor_option("max-autotune")
    assert torch_version.mode_options(None) == {}
    assert all(map(torch_version.is_inductor_option, torch_version.mode_options("max-autotune")))
    with pytest.raises(RuntimeError, match="Unrecognized mode"):
        torch_version.mode_options("no such mode")


def test_outside_of_a_compilation_there_is_no_graph() -> None:
    """Nothing is compiled here."""
    assert torch_version.compile_id() == ""


def test_what_is_known_of_a_fake_tensor(open_size: Any) -> None:
    """Its mode, its environment, its open sizes and what they were when it was made."""
    assert torch_version.fake_mode_of(open_size) is open_size.fake_mode
    assert torch_version.fake_mode_of(torch.ones(1)) is None
    assert torch_version.known_sizes(open_size) == (None, 8)
    assert torch_version.symbols_of(open_size.shape[0]) == {str(open_size.shape[0])}
    assert torch_version.symbols_of(8) == frozenset()
    assert torch_sizes.hint_of(open_size.shape[0]) == 4
    assert torch_sizes.hint_of(8) == 8


def test_the_counters_of_both_caches_are_found() -> None:
    """A report can tell a hit from a miss under every version."""
    counts = torch_version.cache_counts()
    assert sorted(counts) == sorted(
        f"{cache} {what}" for cache in ("AOTAutogradCache", "FxGraphCache") for what in ("hit", "miss", "bypass")
    )
    assert all(isinstance(count, int) for count in counts.values())
