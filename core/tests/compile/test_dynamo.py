"""Dynamo's doors without a public name: guards on a value of ours, compilations apart, compiled modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.exc
import torch._dynamo.testing
from torch import Tensor
from vllm_ir.compile import dynamo


class Holder:
    """Has an attribute that is worked out whenever it is read.

    Attributes:
        value: what it will be.
    """

    def __init__(self) -> None:
        self.value = "a"

    @property
    def asked(self) -> str:
        """The attribute."""
        return self.value


def double(x: Tensor) -> Tensor:
    """Be compiled."""
    return x * 2


def counting(counts: list[str], name: str) -> Any:
    """Return a compiler that counts its graphs under a name, and runs them as they are."""

    def compiler(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Compile one graph."""
        counts.append(name)
        return module

    return compiler


def test_a_guard_is_read_before_every_call() -> None:
    """Another value compiles anew, an earlier one is found again."""
    holder, counts = Holder(), []

    def compiler(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Compile one graph, for the present value only."""
        counts.append(holder.value)
        assert dynamo.compiling()
        assert dynamo.add_guard(holder, "asked")
        return module

    compiled = torch.compile(double, backend=compiler)
    for value in ("a", "a", "b", "a", "b", "c"):
        holder.value = value
        compiled(torch.ones(2))
    assert counts == ["a", "b", "c"]
    assert not dynamo.compiling()


def test_a_graph_of_somebody_else_has_no_guard() -> None:
    """Where Dynamo does not compile, there is nobody to read it."""
    assert not dynamo.add_guard(Holder(), "asked")


@pytest.mark.parametrize("inlining", [False, True], ids=["torch keeps them apart", "as before torch 2.13"])
def test_compilations_apart_share_nothing(inlining: bool) -> None:
    """Each has its own code for the same function, and its own limit."""
    counts: list[str] = []

    def compile_one(name: str) -> Any:
        """Compile the function once more."""
        if inlining:
            return torch.compile(dynamo._inlining(double), backend=counting(counts, name), dynamic=False)
        return dynamo.compile_apart(double, counting(counts, name), {"dynamic": False})

    compiled = {name: compile_one(name) for name in map(str, range(12))}
    for _ in range(2):
        for each in compiled.values():
            torch.testing.assert_close(each(torch.ones(2)), torch.full((2,), 2.0))
    assert counts == list(compiled)


def test_a_compiled_module_calls_what_its_context_makes() -> None:
    """It is made by torch, so it is one of torch's; what is called is the context's."""
    net = torch.nn.Sequential(torch.nn.ReLU())
    made: list[Any] = []

    def context(function: Any) -> Any:
        """Keep what is to be compiled, and return something else."""
        made.append(function)
        return lambda x: x + 1

    compiled = dynamo.compiled_module(net, context)
    assert type(compiled) is type(torch.compile(net))
    assert compiled(torch.zeros(1)).item() == 1
    assert len(made) == 1


def test_torch_disabled_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is then what it was, as torch has it."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    net = torch.nn.ReLU()
    assert dynamo.compiled_module(net, lambda function: function) is net


def test_dynamos_errors_are_told_from_others() -> None:
    """By the class that all of them have."""
    assert dynamo.is_dynamos(torch._dynamo.exc.InternalTorchDynamoError("x"))
    assert not dynamo.is_dynamos(ValueError("x"))
