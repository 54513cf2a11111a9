"""`vllm-ir explain`: the order, who put each there, the verdicts; from files, and from the process itself."""

from __future__ import annotations

import importlib
import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir.cli import explain
from vllm_ir.errors import TorchMissing

if TYPE_CHECKING:
    from core.tests.cli.conftest import Site

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="a live answer needs torch, which is not here")

PICKY = """
from torch import Tensor
from vllm_ir import Unsupported, hookimpl, implements

def accepts(x, weight, epsilon, variance_size=None):
    return True if weight is None else Unsupported("takes no weight")

@implements("rms_norm", provider="{provider}", supports_args=accepts)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    raise SystemExit("explain ran a kernel")

@hookimpl
def vllm_ir_implementations(platform):
    return [rms_norm]
"""


def rows(text: str) -> list[tuple[str, str | None, bool, bool]]:
    """Return the candidates of a JSON answer that these tests know: provider, layer, accepted, selected."""
    known = {"native", "good", "spare", "picky"}
    candidates: list[dict[str, Any]] = json.loads(text)["candidates"]
    return [
        (each["provider"], each["layer"], each["accepted"], each["selected"])
        for each in candidates
        if each["provider"] in known
    ]


@pytest.fixture
def layers(site: Site) -> Site:
    """Give providers that three layers put into the order."""
    site.add_provider("good")
    site.add_provider("spare", default=True)
    site.add_provider("picky", hooks=PICKY)
    (site.folder / "vllm-ir.toml").write_text('[op-priority]\nrms_norm = ["good"]\n', encoding="utf-8")
    return site


ORDER = [
    ("picky", "--ir-op-priority", True, True),
    ("good", "vllm-ir.toml", True, False),
    ("spare", "provider default", True, False),
    ("native", "built-in", True, False),
]


def test_files_tell_the_order_with_the_layer_of_each_entry(layers: Site) -> None:
    """Command line before file before default before native."""
    done = layers.run("explain", "rms_norm", "--static", "--json", "--ir-op-priority.rms_norm=picky")
    assert done.returncode == 0, done.stderr
    assert rows(done.stdout) == ORDER
    assert json.loads(done.stdout)["selected"] == "picky"


@needs_torch
def test_a_live_answer_has_the_same_order(layers: Site) -> None:
    """What files told is what the process does, where the predicate agrees."""
    arguments = ["--args", "x=f32[2,4],weight=none,epsilon=1e-6"]
    done = layers.run("explain", "rms_norm", *arguments, "--json", "--ir-op-priority.rms_norm", "picky")
    assert done.returncode == 0, done.stderr
    assert rows(done.stdout) == ORDER
    assert json.loads(done.stdout)["arguments"] == "x=float32[2,4],weight=none,epsilon=1e-06,variance_size=none"


@needs_torch
def test_a_live_answer_asks_the_predicate_and_runs_no_kernel(layers: Site) -> None:
    """With a weight the first one refuses, in its own words, and the next takes the call."""
    done = layers.run("explain", "rms_norm", "--ir-op-priority.rms_norm=picky")
    assert done.returncode == 0, done.stderr
    assert "takes no weight" in done.stdout
    lines = [line.split()[:2] for line in done.stdout.splitlines()]
    assert [">", "good"] in lines


def test_the_environment_is_a_layer(layers: Site) -> None:
    """The variable's own name stands beside what it put there."""
    done = layers.run("explain", "rms_norm", "--static", "--json", VLLM_IR_OP_PRIORITY="rms_norm=spare")
    assert rows(done.stdout)[0] == ("spare", "VLLM_IR_OP_PRIORITY", True, True)


def test_native_leads_when_inductor_compiles(layers: Site) -> None:
    """Defaults stand behind native then; what a user named stays in front."""
    done = layers.run("explain", "rms_norm", "--static", "--json", "--compiling")
    assert [row[:2] for row in rows(done.stdout)[:2]] == [("good", "vllm-ir.toml"), ("native", "platform default")]


def test_a_provider_in_no_list_is_shown_last(site: Site) -> None:
    """An operator sees what else is installed, and that nothing names it."""
    site.add_provider("good")
    done = site.run("explain", "rms_norm", "--static", "--json", VLLM_IR_PROVIDERS="good")
    assert rows(done.stdout) == [("native", "built-in", True, True), ("good", None, False, False)]
    assert "no priority list names it" in done.stdout


@pytest.mark.parametrize("static", [["--static"], pytest.param([], marks=needs_torch)])
def test_a_provider_that_is_not_installed_is_exit_2_with_the_nearest(site: Site, static: list[str]) -> None:
    """What was typed is checked before anything is chosen."""
    site.add_provider("good")
    done = site.run("explain", "rms_norm", *static, "--ir-op-priority.rms_norm=goood")
    assert done.returncode == 2
    assert "Did you mean 'good'?" in done.stderr


@pytest.mark.parametrize("static", [["--static"], pytest.param([], marks=needs_torch)])
def test_an_unknown_op_is_exit_2_with_the_nearest(site: Site, static: list[str]) -> None:
    """The op of the verb and the op of a flag are both looked up."""
    lines = (["rms_nrom"], ["rms_norm", "--ir-op-priority.rms_nrom=native"])
    for done in site.run_each([["explain", *line, *static] for line in lines]):
        assert done.returncode == 2, done.stdout
        assert "Did you mean 'rms_norm'?" in done.stderr
        assert done.stdout == ""


@pytest.mark.parametrize("static", [["--static"], pytest.param([], marks=needs_torch)])
def test_a_setting_that_would_stop_a_run_is_shown_and_is_exit_2(site: Site, static: list[str]) -> None:
    """The table still comes, so that the operator sees the rest, and the error names the layer."""
    site.add_provider("faraway", platform="faraway")
    for text in ("rms_norm=faraway", "rms_nrom=native"):
        done = site.run("explain", "rms_norm", *static, VLLM_IR_OP_PRIORITY=text)
        assert done.returncode == 2, text
        assert "native" in done.stdout
        assert "a run would stop here. VLLM_IR_OP_PRIORITY" in done.stderr


@pytest.mark.parametrize("static", [["--static"], pytest.param([], marks=needs_torch)])
def test_two_distributions_with_one_provider_are_shown_and_are_exit_2(site: Site, static: list[str]) -> None:
    """Every other row is there, theirs has the reason, and it is said that a run would stop."""
    site.add_provider("good")
    site.add_provider("spare", default=True)
    site.add("dist-other", {"vllm_ir.providers": "good = pack_good.hooks"}, {})
    done = site.run("explain", "rms_norm", *static, "--json")
    assert done.returncode == 2
    assert rows(done.stdout) == [
        ("spare", "provider default", True, True),
        ("native", "built-in", True, False),
        ("good", None, False, False),
    ]
    told = json.loads(done.stdout)
    (row,) = [each for each in told["candidates"] if each["provider"] == "good"]
    assert "'dist-good', 'dist-other'" in row["reason"]
    assert told["error"] == row["reason"]
    assert "a run would stop here. Provider 'good' is brought by 2 distributions" in done.stderr


@pytest.mark.parametrize("static", [["--static"], pytest.param([], marks=needs_torch)])
def test_what_was_typed_is_checked_before_what_two_distributions_claim(site: Site, static: list[str]) -> None:
    """A misspelt flag is mended first, and nothing else is shown."""
    site.add_provider("good")
    site.add("dist-other", {"vllm_ir.providers": "good = pack_good.hooks"}, {})
    done = site.run("explain", "rms_norm", *static, "--ir-op-priority.rms_norm=natve")
    assert done.returncode == 2
    assert "Did you mean 'native'?" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("static", [["--static"], pytest.param([], marks=needs_torch)])
def test_a_misspelt_name_in_the_deny_list_is_said_once(site: Site, static: list[str]) -> None:
    """Beside the answer, since no row of it can say so."""
    site.add_provider("good")
    done = site.run("explain", "rms_norm", *static, VLLM_IR_PROVIDERS_DISABLED="goood")
    assert done.returncode == 0
    assert done.stderr.count("names 'goood', which nothing here has. Did you mean 'good'?") == 1


@needs_torch
def test_a_provider_that_cannot_run_here_is_a_row_of_a_live_answer_too(site: Site) -> None:
    """No list names it, and its reason is told."""
    site.add_provider("faraway", platform="faraway")
    done = site.run("explain", "rms_norm", "--json")
    (row,) = [each for each in json.loads(done.stdout)["candidates"] if each["provider"] == "faraway"]
    assert (row["layer"], row["accepted"]) == (None, False)
    assert "this machine is" in row["reason"]


def test_batch_invariance_admits_only_what_declares_it(site: Site) -> None:
    """The reason names the variable."""
    site.add_provider("spare", default=True)
    done = site.run("explain", "rms_norm", "--static", "--json", VLLM_BATCH_INVARIANT="1")
    assert ("spare", "provider default", False, False) in rows(done.stdout)
    assert "VLLM_BATCH_INVARIANT" in done.stdout


def test_files_cannot_judge_arguments(site: Site) -> None:
    """`--args` with `--static`, or with the platform of another machine, is a usage error that says why."""
    for flags in (["--static"], ["--platform", "cuda:9.0"]):
        done = site.run("explain", "rms_norm", *flags, "--args", "x=f32[2]")
        assert done.returncode == 2
        assert f"{flags[0]} does not import" in done.stderr


@needs_torch
def test_arguments_that_do_not_fit_are_exit_2(site: Site) -> None:
    """The sentence names what is wrong with the description."""
    wrong = {
        "x=f32[2": "a bracket is left open",
        "x=f32[2,4]": "also needs weight, epsilon",
        "y=1": "has no argument 'y'",
    }
    done = site.run_each([["explain", "rms_norm", "--args", spec] for spec in wrong])
    assert [each.returncode for each in done] == [2, 2, 2]
    for each, part in zip(done, wrong.values(), strict=True):
        assert part in each.stderr


@needs_torch
def test_every_op_has_an_example_of_its_own(site: Site) -> None:
    """Without `--args` the op's generator gives the arguments."""
    ops = importlib.import_module("vllm_ir.ops").__all__
    for op, done in zip(ops, site.run_each([["explain", op, "--json"] for op in ops]), strict=True):
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["op"] == op
        assert "=float32[" in json.loads(done.stdout)["arguments"]


def test_what_only_loading_can_tell_is_said(site: Site) -> None:
    """A hook that decides the order at run time shows as such."""
    site.add_provider("good")
    manifest = site.folder / "pack_good" / "vllm_ir_provider.toml"
    text = manifest.read_text(encoding="utf-8").replace("[providers", "defaults-at-run-time = true\n[providers", 1)
    manifest.write_text(text, encoding="utf-8")
    done = site.run("explain", "rms_norm", "--static")
    assert "dist-good decides its default order at run time" in done.stdout


@needs_torch
@pytest.mark.parametrize("spec", ["x=f32[4,64],weight=f32[63],epsilon=1e-6", "x=i64[4,64],weight=none,epsilon=1e-6"])
def test_a_call_that_native_refuses_is_a_wrong_question(site: Site, spec: str) -> None:
    """Which kernel runs a call that nobody can run has no answer."""
    done = site.run("explain", "rms_norm", "--args", spec)
    assert (done.returncode, done.stdout) == (2, "")
    assert "rms_norm(): argument" in done.stderr


def test_without_torch_the_static_question_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which torch is what is broken gets a sentence."""
    monkeypatch.setattr("vllm_ir.cli.explain.find_spec", lambda _: None)
    with pytest.raises(TorchMissing, match="vllm-ir explain --static"):
        explain.run(["rms_norm"])


@needs_torch
def test_nothing_is_allocated_for_a_live_answer(site: Site) -> None:
    """A tensor larger than any memory is asked about, strides and all; what was asked is told as it is written."""
    site.add_provider("picky", hooks=PICKY)
    first = ["--json", "--ir-op-priority.rms_norm=picky", "--args"]
    specs = (
        "x=bf16[1000000000,1048576],weight=none,epsilon=1e-6",
        "x=bf16[4,64:192,1],weight=bf16[64],epsilon=1e-6",
        "x=bf16[4,64:192],weight=bf16[64],epsilon=1e-6",
    )
    huge, apart, wrong = site.run_each([["explain", "rms_norm", *first, spec] for spec in specs])
    assert (huge.returncode, json.loads(huge.stdout)["selected"]) == (0, "picky")
    assert json.loads(apart.stdout)["arguments"].startswith("x=bfloat16[4,64:192,1],weight=bfloat16[64],")
    assert "takes no weight" in apart.stdout
    assert wrong.returncode == 2
    assert "'x' has 2 sizes and 1 strides" in wrong.stderr
