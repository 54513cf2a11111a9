"""Whether processes agree: four ranks over gloo, one of them different, and what each of them is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir import consensus
from vllm_ir.errors import NotDistributed, SelectionsDiffer

if TYPE_CHECKING:
    from pathlib import Path

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which this interpreter has not")

RANKS = """
import json, multiprocessing, os, sys

class NoNumpy:
    # vllm-ir does not require it, and torch looks for it when it is imported.
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError("no numpy here", name=name)

sys.meta_path.insert(0, NoNumpy())
import torch
import torch.distributed as dist
import vllm_ir
from vllm_ir import ops
from vllm_ir.isolation import isolated

SIZE = 4

def asked(group=None):
    try:
        vllm_ir.verify_agreement(group)
    except Exception as error:
        return [type(error).__name__, str(error), getattr(error, "differences", None), type(error.__cause__).__name__]

def work(rank, folder):
    told = {"early": asked()}
    try:
        torch.ones(1).numpy()
    except RuntimeError as error:
        told["numpy"] = str(error)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=SIZE)
    told["alike"] = asked()
    told["digest"] = vllm_ir.selection_digest()
    pair = dist.new_group([0, 1])
    if rank == 2:
        @ops.silu_and_mul.register_impl("stray")
        def stray(x: torch.Tensor) -> torch.Tensor:
            return x[..., : x.shape[-1] // 2]
        ops.silu_and_mul.set_default(["stray"])
    told["one differs"] = asked()
    told["digest of one"] = vllm_ir.selection_digest()
    told["others alone"] = asked(pair)
    if rank == 3:
        with isolated({"VLLM_IR_OP_PRIORITY": "rms_norm=absent"}, loader=vllm_ir.load_providers):
            told["one cannot tell"] = asked()
    else:
        told["one cannot tell"] = asked()
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(told, file)
    dist.destroy_process_group()

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(rank, sys.argv[1])) for rank in range(SIZE)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(100)
    sys.exit(any(each.exitcode != 0 for each in workers))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what each of four ranks was told; torch is imported once, in the process that they are forked from."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "ranks.py").write_text(RANKS, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    # Asked for its own name, gloo may wait for a name server that is not there.
    variables = {**clean, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "ranks.py", str(folder)],
        cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(4)]


@needs_torch
def test_ranks_that_are_alike_agree(told: list[dict[str, Any]]) -> None:
    """Nobody raises, and all have one digest."""
    assert [each["alike"] for each in told] == [None] * 4
    assert len({each["digest"] for each in told}) == 1


@needs_torch
def test_none_of_it_needs_numpy(told: list[dict[str, Any]]) -> None:
    """Torch itself says in each rank that there is none, and they have been told all that the tests here hold."""
    assert [each["numpy"] for each in told] == ["Numpy is not available"] * 4


@needs_torch
def test_one_that_differs_is_named_on_every_rank(told: list[dict[str, Any]]) -> None:
    """Every rank raises the same sentence: the op, both modes of it, who has what; and nothing else differs."""
    assert len({json.dumps(each["one differs"]) for each in told}) == 1
    kind, sentence, differences, _ = told[0]["one differs"]
    assert kind == "SelectionsDiffer"
    assert [entry for entry, _ in differences] == ["op silu_and_mul, compiling", "op silu_and_mul, eager"]
    for _, who in differences:
        assert who.startswith("ranks 0, 1, 3 have ")
        assert "; rank 2 has stray@" in who
    assert sentence.startswith("4 ranks do not select the same kernels. They differ in op silu_and_mul, compiling: ")
    assert [each["digest of one"] == told[0]["digest"] for each in told] == [True, True, False, True]


@needs_torch
def test_a_group_is_asked_alone(told: list[dict[str, Any]]) -> None:
    """Ranks 0 and 1 agree with each other, and the other two, which are not in their group, are not asked."""
    assert [each["others alone"] for each in told] == [None] * 4


@needs_torch
def test_a_rank_that_cannot_tell_lets_nobody_wait(told: list[dict[str, Any]]) -> None:
    """Its configuration is wrong: the others hear why, and on itself that is the cause."""
    answers = [each["one cannot tell"] for each in told]
    assert {kind for kind, _, _, _ in answers} == {"SelectionsDiffer"}
    first = answers[0][2][0]
    assert first[0] == "selecting"
    assert first[1].startswith("rank 3 cannot tell (UnknownProvider: VLLM_IR_OP_PRIORITY: provider 'absent'")
    assert [cause for _, _, _, cause in answers] == ["NoneType", "NoneType", "NoneType", "UnknownProvider"]


@needs_torch
def test_without_ranks_it_is_said(told: list[dict[str, Any]]) -> None:
    """A check that cannot be made is never taken for one that was passed."""
    kind, sentence, _, _ = told[0]["early"]
    assert kind == "NotDistributed"
    assert "torch.distributed.init_process_group" in sentence


@needs_torch
def test_importing_it_imports_no_torch_distributed(tmp_path: Path) -> None:
    """Start-up is paid in every worker."""
    code = "import sys, vllm_ir.consensus; print([name for name in sys.modules if name.split('.')[0] == 'torch'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_who_has_what_is_said_in_words() -> None:
    """Ranks with the same text stand together, a run by its ends, and one that lacks an entry has nothing."""
    same = {"a": "1", "b": "2"}
    assert consensus.compare([same, same, dict(same)]) == ()
    assert consensus.compare([same, same, same, {"a": "1"}, {"a": "3", "b": "2"}]) == (
        ("a", "ranks 0 to 3 have 1; rank 4 has 3"),
        ("b", "ranks 0, 1, 2, 4 have 2; rank 3 has nothing"),
    )
    assert consensus.compare([{consensus.FAILED: "X: y."}, same]) == (("selecting", "rank 0 cannot tell (X: y)"),)


@pytest.mark.parametrize(
    ("backends", "device"),
    [("cpu:gloo,cuda:gloo", "cpu"), ("cuda:nccl", "cuda"), ("cpu:gloo,cuda:nccl", "cpu"), ("xpu:xccl", "xpu")],
)
def test_what_is_sent_lies_where_the_group_can_send_it(backends: str, device: str) -> None:
    """NCCL takes no tensors of the CPU, and gloo needs no GPU."""
    assert consensus._device(backends) == device


def test_the_digest_follows_the_entries_and_not_their_order() -> None:
    """Any entry that changes, changes it."""
    first = consensus.digest({"a": "1", "b": "2"})
    assert first == consensus.digest({"b": "2", "a": "1"})
    assert first != consensus.digest({"a": "1", "b": "3"})
    assert len(first) == 64


def test_the_sentences() -> None:
    """Who differs in what, and what to do."""
    error = SelectionsDiffer(ranks=2, differences=[("op x, eager", "rank 0 has a; rank 1 has b"), ("strict mode", "z")])
    assert str(error) == (
        "2 ranks do not select the same kernels. They differ in op x, eager: rank 0 has a; rank 1 has b | strict mode:"
        " z. Install the same wheels and set the same variables on all of them; `vllm-ir doctor` on each tells more."
    )
    assert "not initialised in this process" in str(NotDistributed(wanted="verify_agreement"))
