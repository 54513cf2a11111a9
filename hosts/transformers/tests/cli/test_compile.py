"""`vllm-ir run --compile`: eager's tokens, who stands where in each graph, and a compiler that fails."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import torch
import vllm_ir
from vllm_ir.compile.lower_to import lower_graph
from vllm_ir.errors import BatchGuard
from vllm_ir.graphs import GraphRecord
from vllm_ir_host_transformers import compiling
from vllm_ir_host_transformers.cli import showing
from vllm_ir_host_transformers.cli.run import run
from vllm_ir_host_transformers.errors import CannotCompile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@pytest.fixture(autouse=True)
def dynamo() -> Iterator[None]:
    """Forget what Dynamo compiled, before and after."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def base(tiny_folder: Path) -> list[str]:
    """Give the arguments that make it quick."""
    return ["--model", str(tiny_folder), "--prompt", "Hello", "--max-new-tokens", "6", "--device", "cpu"]


def test_the_answer_is_eagers_and_the_graphs_are_shown(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens, a graph for the prompt and one for tokens, and the provider of every node, in JSON and in words."""
    assert run([*base, "--json"]) == 0
    eager: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert "compile" not in eager
    assert run([*base, "--json", "--compile"]) == 0
    captured = capsys.readouterr()
    content: dict[str, Any] = json.loads(captured.out)
    begun, ended = captured.err.splitlines()
    assert begun == "vllm-ir: compiling ..."
    assert re.fullmatch(r"vllm-ir: compiling: done after \d+\.\d s", ended)
    assert content["token_ids"] == eager["token_ids"]
    assert content["notes"] == eager["notes"]
    assert all(op["calls"] == {} for op in content["ops"].values())
    found = content["compile"]
    assert [graph["stage"] for graph in found["graphs"]] == ["prompt", "token"]
    assert {op: len(nodes) for op, nodes in found["graphs"][1]["selected"].items()} == {
        op: use["places"] for op, use in eager["ops"].items()
    }
    assert set(found["graphs"][0]["selected"]["rms_norm"].values()) == {"native"}
    assert found["seconds"] > content["seconds"]
    assert (found["exact"], found["graphs_while_answering"]) == (True, 0)
    assert run([*base, "--compile"]) == 0
    text = capsys.readouterr().out
    assert "compiled before that in" in text
    rows = [line.split() for line in text.splitlines() if " prompt " in line and "native" in line]
    assert sorted((row[2], row[3], row[4]) for row in rows) == [
        ("fused_add_rms_norm", "native", "2"),
        ("rms_norm", "native", "3"),
        ("rotary_embedding", "native", "2"),
        ("silu_and_mul", "native", "2"),
    ]


def test_a_static_cache_answers_the_same_compiled(
    base: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the tokens of an eager static cache, two graphs, and none made while it answers; the cache is named."""

    def lowered(module: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        """Lower a graph and run it as it is, which spares Inductor's time."""
        lower_graph(module)
        return module

    monkeypatch.setattr(vllm_ir, "compile", functools.partial(vllm_ir.compile, lower_to=lowered))
    arguments = [*base, "--json", "--cache", "static"]
    found: list[dict[str, Any]] = []
    for flags in ([], ["--compile"]):
        assert run([*arguments, *flags]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["token_ids"] == found[1]["token_ids"]
    assert found[0]["cache"] == found[1]["cache"] == "static"
    assert [graph["stage"] for graph in found[1]["compile"]["graphs"]] == ["prompt", "token"]
    assert found[1]["compile"]["graphs_while_answering"] == 0


@pytest.mark.parametrize(
    ("raised", "expected", "words"),
    [
        (RuntimeError("no C++ compiler\nmore"), CannotCompile, "cannot be compiled: no C\\+\\+ compiler. Leave"),
        (RuntimeError(), CannotCompile, "cannot be compiled: RuntimeError. Leave"),
        (BatchGuard(op="rms_norm", provider="x", guard="s0 > 4", where=""), BatchGuard, "rms_norm"),
    ],
)
def test_what_cannot_be_compiled_is_a_sentence(
    raised: Exception,
    expected: type[Exception],
    words: str,
    base: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first line of what the compiler says; an error of ours stays what it is; nothing is printed as an answer."""

    def fail(*_: object, **__: object) -> NoReturn:
        """Raise as a compiler does, at the first call."""
        raise raised

    monkeypatch.setattr(vllm_ir, "compile", lambda *_, **__: fail)
    with pytest.raises(expected, match=words):
        run([*base, "--compile"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.partition(" after ")[0] for line in captured.err.splitlines()] == [
        "vllm-ir: compiling ...",
        "vllm-ir: compiling: failed",
    ]


@pytest.mark.parametrize(
    ("cached", "words"),
    [(0, "2 graphs; roundings"), (1, "2 graphs, 1 of them from the cache"), (2, "2 graphs, all from the cache")],
)
def test_it_is_said_what_a_cache_saved(cached: int, words: str) -> None:
    """None, some or all of the graphs."""
    records = [GraphRecord("0/0", {}, cached=number < cached) for number in range(2)]
    graphs = tuple(compiling.Graph("prompt", record) for record in records)
    assert words in showing.compile_sentence(compiling.Compilation(graphs, 1.0))
