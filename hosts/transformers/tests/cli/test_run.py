"""`vllm-ir run`: the answer first, then what ran; one JSON object; and mistakes that end with 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch  # noqa: TC002 - the schema is read from the annotations
import vllm_ir
from vllm_ir.errors import ConfigurationError, UnknownOp, UnknownProvider
from vllm_ir_host_transformers.cli.run import run
from vllm_ir_host_transformers.errors import ModelNotFound

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_ir.op import IrOp


def add(op: IrOp, name: str) -> None:
    """Register a provider of one op that does what native does."""
    op.register_impl(name)(op.declaration.native)


@pytest.fixture
def base(tiny_folder: Path) -> list[str]:
    """Give the arguments that make it quick."""
    return ["--model", str(tiny_folder), "--prompt", "Hello", "--max-new-tokens", "4", "--device", "cpu"]


def as_json(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    """Run with `--json` and return the object, which is all there is on stdout."""
    assert run([*arguments, "--json"]) == code
    captured = capsys.readouterr()
    content: dict[str, Any] = json.loads(captured.out)
    assert captured.err == ""
    return content


def test_the_answer_comes_first_and_then_what_ran(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens per second, a row per op, and where the other norms are; stderr stays empty."""
    assert run(base) == 0
    captured = capsys.readouterr()
    said, _, rest = captured.out.partition("\n\n4 tokens in ")
    assert said
    assert "tokens per second" in rest
    rows = {line.split()[0]: line.split() for line in rest.splitlines() if "native" in line}
    assert rows["rms_norm"][1:4] == ["native", "12", "3"]
    assert rows["fused_add_rms_norm"][1:4] == ["native", "8", "2"]
    assert rows["silu_and_mul"][1:4] == ["native", "8", "2"]
    assert rows["rotary_embedding"][1:4] == ["native", "8", "2"]
    told = "rms_norm takes 3 of 5 norms per forward pass; the other 2 run in fused_add_rms_norm"
    assert told in " ".join(rest.split())  # a long path to the model folds the line
    assert captured.err == ""


def test_json_says_the_same_to_a_program(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One object with everything, and nothing is streamed."""
    content = as_json(base, capsys)
    assert content["version"] == "1"
    assert (content["tokens"], content["forward_passes"], content["norms"]) == (4, 4, 5)
    assert content["tokens_per_second"] > 0
    assert content["ops"]["rms_norm"] == {
        "priority": [{"provider": "native", "layer": "built-in"}],
        "calls": {"native": 12},
        "calls_per_forward_pass": {"native": 3},
        "refusals": [],
        "places": 3,
    }
    assert {place["op"] for place in content["replaced"]} == set(content["ops"])
    assert content["left"] == []


def test_without_fusing_all_norms_run_alone(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`--no-fuse-residual` and `--fuse-residual never` are the same, and change no token."""
    fused = as_json(base, capsys)
    for flags in (["--no-fuse-residual"], ["--fuse-residual", "never"]):
        content = as_json([*base, *flags], capsys)
        assert content["ops"]["rms_norm"]["calls_per_forward_pass"] == {"native": 5}
        assert "fused_add_rms_norm" not in content["ops"]
        assert content["token_ids"] == fused["token_ids"]


def test_a_provider_named_for_rms_norm_alone_gets_all_norms(
    base: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It lacks the fused op, so nothing is fused, which is said with the way to have it otherwise."""
    add(vllm_ir.ops.rms_norm, "alone")
    content = as_json([*base, "--ir-op-priority.rms_norm=alone"], capsys)
    assert content["ops"]["rms_norm"]["calls_per_forward_pass"] == {"alone": 5}
    assert content["ops"]["rms_norm"]["priority"][0] == {"provider": "alone", "layer": "--ir-op-priority"}
    (note,) = content["notes"]
    assert "alone was named for rms_norm and has no fused_add_rms_norm" in note
    assert "--fuse-residual=exact" in note


def test_fusing_can_be_asked_for_nevertheless(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Then the named provider gets the norms that stand alone, and the sentence says how many and where the rest is."""
    add(vllm_ir.ops.rms_norm, "alone")
    content = as_json([*base, "--ir-op-priority.rms_norm", "alone", "--fuse-residual", "exact"], capsys)
    assert content["ops"]["rms_norm"]["calls_per_forward_pass"] == {"alone": 3}
    assert content["ops"]["fused_add_rms_norm"]["calls_per_forward_pass"] == {"native": 2}
    assert "rms_norm takes 3 of 5 norms" in content["notes"][0]


def test_a_provider_of_both_ops_keeps_the_fused_one(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is given up for it."""
    add(vllm_ir.ops.rms_norm, "both")
    add(vllm_ir.ops.fused_add_rms_norm, "both")
    content = as_json([*base, "--ir-op-priority.rms_norm=both"], capsys)
    assert content["ops"]["rms_norm"]["calls_per_forward_pass"] == {"both": 3}
    assert content["ops"]["fused_add_rms_norm"]["calls"] == {"native": 8}


def test_a_list_for_the_fused_op_keeps_it(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Who names providers for the fused op wants it to run."""
    add(vllm_ir.ops.rms_norm, "alone")
    flags = ["--ir-op-priority.rms_norm=alone", "--ir-op-priority.fused_add_rms_norm=native"]
    content = as_json([*base, *flags], capsys)
    assert content["ops"]["rms_norm"]["calls_per_forward_pass"] == {"alone": 3}


def test_a_named_provider_that_refuses_every_call_is_a_finding(
    base: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1, every refusal with its number, and a sentence."""
    op = vllm_ir.ops.silu_and_mul

    def refuse(x: torch.Tensor) -> vllm_ir.Unsupported:  # noqa: ARG001 - a predicate has the op's parameters
        """Refuse everything."""
        return vllm_ir.Unsupported("never wants to")

    op.register_impl("picky", supports_args=refuse)(op.declaration.native)
    content = as_json([*base, "--ir-op-priority.silu_and_mul=picky"], capsys, code=1)
    assert content["ops"]["silu_and_mul"]["refusals"] == [{"provider": "picky", "reason": "never wants to", "count": 8}]
    assert "picky was named for silu_and_mul and ran none of its 8 calls" in content["notes"]
    assert run([*base, "--ir-op-priority.silu_and_mul=picky"]) == 1
    assert "silu_and_mul: picky refused 8 calls: never wants to" in capsys.readouterr().out


def test_bfloat16_says_why_adds_are_left(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The reason stands below the table, and `always` takes it away."""
    assert run([*base, "--dtype", "bfloat16"]) == 0
    assert "2 x residual left: LlamaDecoderLayer" in capsys.readouterr().out
    content = as_json([*base, "--dtype", "bfloat16", "--fuse-residual", "always"], capsys)
    assert content["left"] == []
    assert content["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("flags", "error", "words"),
    [
        (["--ir-op-priority.rms_norm=first_provder"], UnknownProvider, "is not installed"),
        (["--ir-op-priority.rms_nrom=native"], UnknownOp, "Did you mean 'rms_norm'"),
        (["--ir-op-priority.rms_norm"], ConfigurationError, "the providers are missing"),
        (["--model", "/no/such/model"], ModelNotFound, "there is no such file or folder"),
    ],
)
def test_a_mistake_is_a_sentence_before_anything_runs(
    flags: list[str], error: type[Exception], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors of configuration, which the command line turns into exit 2; stdout stays empty."""
    with pytest.raises(error, match=words):
        run(flags)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "flags", [["--max-new-tokens", "0"], ["--max-new-tokens", "x"], ["--dtype", "int8"], ["--nonsense"], ["extra"]]
)
def test_a_wrong_flag_ends_with_two(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As argparse does, with the usage on stderr."""
    with pytest.raises(SystemExit) as caught:
        run(flags)
    assert caught.value.code == 2
    assert "usage: vllm-ir run" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "wanted"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_wait_asleep_unless_the_user_wants_otherwise(given: dict[str, str], wanted: str) -> None:
    """The variable is set before torch is imported, and a value that is there already stays."""
    code = (
        "import os, sys; from vllm_ir_host_transformers.cli.run import run\n"
        "try: run(['--help'])\n"
        "except SystemExit: pass\n"
        "print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    )
    rest = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**rest, **given}
    )
    assert done.stdout.split()[-2:] == [wanted, "False"]


def test_help_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option in words, at most 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        run(["--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert "--no-fuse-residual" in text
    assert max(map(len, text.splitlines())) <= 80
