"""Passes under every version of torch: what differs is taken away or added, so that each way is run here."""

from __future__ import annotations

import contextlib
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir.compile import torch_passes, torch_version  # noqa: E402 - after the check for torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(params=["2.11", "2.12", "2.13"])
def era(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let torch offer what a version offers: 2.13 and 2.14 offer the same."""
    import torch._inductor.compile_fx  # noqa: F401 - torch takes what it needs itself before it is taken away
    from torch._inductor import custom_graph_pass

    wanted: str = request.param
    if wanted in ("2.11", "2.12"):
        monkeypatch.delattr(custom_graph_pass, "get_custom_graph_passes", raising=False)
    if wanted == "2.11":
        monkeypatch.delattr(custom_graph_pass, "CustomInferenceAwareGraphPass", raising=False)
    elif not hasattr(custom_graph_pass, "CustomInferenceAwareGraphPass"):
        pytest.skip("needs torch's CustomInferenceAwareGraphPass, which this torch lacks")
    return wanted


def make_plain(name: str, seen: list[Any]) -> Any:
    """Return a pass with a key that notes its name."""
    base: Any = torch_passes.plain_pass_base()

    class Plain(base):  # type: ignore[misc]
        """A pass."""

        def __call__(self, graph: Any) -> None:  # noqa: ARG002 - torch gives it
            """Note the call."""
            seen.append(name)

        def uuid(self) -> str:
            """Return the key."""
            return f"key of {name}"

    return Plain()


def make_aware(name: str, seen: list[Any]) -> Any:
    """Return a pass with a key that notes its name and what it is told."""
    base: Any = torch_passes.pass_base()

    class Aware(base):  # type: ignore[misc]
        """A pass."""

        def __call__(self, graph: Any, is_inference: bool) -> None:  # noqa: ARG002 - torch gives it
            """Note the call."""
            seen.append((name, is_inference))

        def uuid(self) -> str:
            """Return the key."""
            return f"key of {name}"

    return Aware()


def run_post_grad(value: Any, *, is_inference: bool) -> None:
    """Run what is set behind AOTAutograd as torch does: each by itself, and told only if it is of torch's class."""
    from torch._inductor import custom_graph_pass

    aware: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", ())
    with torch_passes.compiling(is_inference=is_inference):
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, aware):
                each(None, is_inference=is_inference)
            else:
                each(None)


@pytest.mark.parametrize("is_inference", [True, False])
def test_a_pass_learns_what_the_graph_is_for(era: str, *, is_inference: bool) -> None:
    """Under every version, whether torch tells it or not."""
    seen: list[Any] = []
    run_post_grad(make_aware("a", seen), is_inference=is_inference)
    assert seen == [("a", is_inference)], era


def test_what_is_not_known_is_no_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph for training must keep its inputs, so that is what a graph is taken for."""
    from torch._inductor import custom_graph_pass

    monkeypatch.delattr(custom_graph_pass, "CustomInferenceAwareGraphPass", raising=False)
    seen: list[Any] = []
    told = make_aware("a", seen)
    with torch_passes.compiling(is_inference=True):
        thread = threading.Thread(target=told, args=(None,))
        thread.start()
        thread.join()
        with torch_passes.compiling(is_inference=False):
            told(None)
        told(None)
    told(None)
    assert seen == [("a", False), ("a", False), ("a", True), ("a", False)]


def test_passes_of_a_place_run_in_order(era: str) -> None:
    """Ours and those that the user had set share a place, one by one or in sequences of any kind."""
    seen: list[Any] = []

    def theirs(graph: Any) -> None:  # noqa: ARG001 - torch gives it
        """Stand for a pass that is only a function."""
        seen.append("theirs")

    value = torch_passes.chained(None, make_plain("a", seen), [theirs], (make_aware("b", seen),), ())
    if era == "2.13":
        assert isinstance(value, tuple)
    else:
        assert callable(value)
    run_post_grad(value, is_inference=True)
    assert seen == ["a", "theirs", ("b", True)]


def test_a_place_with_nothing_in_it_stays_empty(era: str) -> None:
    """Nothing is None, which is what torch takes for it."""
    assert torch_passes.chained() is None, era
    assert torch_passes.chained(None, (), []) is None


def test_one_pass_stays_what_it_is(era: str) -> None:
    """Nothing is put around a single one where torch takes a single one."""
    one = make_plain("a", [])
    value = torch_passes.chained(one)
    assert value == (one,) if era == "2.13" else value is one


@pytest.mark.parametrize("era", ["2.11", "2.12"], indirect=True)
def test_the_key_of_several_is_all_their_keys(era: str) -> None:
    """Where one stands for all, torch asks that one; later versions ask each by itself."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    value = torch_passes.chained(make_plain("a", []), make_aware("b", []))
    assert isinstance(value, CustomGraphPass)
    assert value.uuid() == ("key of a", "key of b"), era
    assert torch_passes.chained(make_plain("a", []), make_plain("c", [])).uuid() != value.uuid()


@pytest.mark.parametrize("era", ["2.11", "2.12"], indirect=True)
def test_one_without_a_key_leaves_none(era: str) -> None:
    """A cache that does not know what a function does must not be used, as torch has it for that function alone."""
    assert torch_passes.chained(make_plain("a", []), print).uuid() is None, era


def test_a_pass_is_pickled_as_its_key(era: str) -> None:
    """Torch 2.11 pickles the pass before AOTAutograd with the configuration, and reads no address of ours there."""
    one, same = (pickle.dumps(make_plain("a", [])) for _ in range(2))
    assert one == same, era
    assert pickle.dumps(make_plain("b", [])) != one
    assert pickle.dumps(make_aware("a", [])) == pickle.dumps(make_aware("a", []))
    chains = [torch_passes.chained(make_plain("a", []), make_aware(name, []), print) for name in "bbc"]
    assert pickle.dumps(chains[0]) == pickle.dumps(chains[1])
    assert pickle.dumps(chains[1]) != pickle.dumps(chains[2])


def test_a_function_without_a_name_is_no_part_of_a_key(era: str) -> None:
    """What torch cannot pickle by itself it cannot pickle beside a pass of ours either, and does without its cache."""
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(torch_passes.chained(make_plain("a", []), lambda graph: graph))
    assert era


@contextlib.contextmanager
def unwatched(*, backward: bool) -> Iterator[None]:
    """Stand for who wants to know of every graph."""
    assert backward in (True, False)
    yield


def compile_noting(seen: list[Any]) -> Callable[..., Any]:
    """Return a backend whose pass behind AOTAutograd notes what it is told."""

    def backend(module: Any, inputs: Any) -> Any:
        """Compile with two passes in one place."""
        both = torch_passes.chained(make_aware("a", seen), make_plain("b", seen))
        patches = {"post_grad_custom_post_pass": both, "force_disable_caches": True}
        return torch_version.compile_with_inductor(module, inputs, patches, torch_version.decompositions(), unwatched)

    return backend


def test_inductor_runs_them(era: str) -> None:
    """With the real compiler: a graph for inference is told to be one, a forward and a backward graph are not."""
    seen: list[Any] = []

    def model(x: Any) -> Any:
        """Stand for a model, one for which no kernel has to be built."""
        return x @ x

    square = torch.compile(model, backend=compile_noting(seen), fullgraph=True)
    with torch.no_grad():
        assert torch.equal(square(torch.ones(3, 3)), torch.full((3, 3), 3.0))
    assert seen == [("a", True), "b"], era
    x = torch.ones(3, 3, requires_grad=True)
    square(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3, 3), 6.0))
    assert seen[2:] == [("a", False), "b", ("a", False), "b"]
