"""Processes that start otherwise: other orders of imports, spawned workers, strict variables, a switched-off host."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess

STATE = str(Path(__file__).with_name("state.py"))

ORDERS = {
    "vllm first": "import vllm.ir, vllm_ir; vllm_ir.ops",
    "vllm_ir first": "import vllm_ir; vllm_ir.ops; import vllm.ir",
}

BOTH = """
import torch
x, weight = torch.randn(3, 64), torch.randn(64)
theirs = vllm.ir.ops.rms_norm.impls["native"].impl_fn(x, weight, 1e-6)
ours = vllm_ir.ops.rms_norm.native_torch_op(x, weight, 1e-6)
through = torch.ops.vllm_ir.rms_norm(x, weight, 1e-6), vllm_ir.ops.rms_norm.torch_op(x, weight, 1e-6)
print(torch.equal(theirs, ours), torch.equal(theirs, through[0]), vllm_ir.ops.rms_norm.torch_op.namespace)
"""

OURS = {"VLLM_IR_HOST": "1", "VLLM_IR_OP_PRIORITY": "rms_norm=cpu_c", "VLLM_IR_STRICT": "1"}

STARTS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    **{order: (("-c", script + BOTH), {}) for order, script in ORDERS.items()},
    "on": ((STATE, "strict", "spawned", "keys"), OURS),
    "off": ((STATE, "strict"), {**OURS, "VLLM_IR_HOST": "0"}),
    "without": ((STATE, "strict"), {**OURS, "VLLM_PLUGINS": ""}),
    "misspelt": ((STATE,), {"VLLM_IR_OP_PRIORITY": "rms_norm=cpu_d"}),
}
"""Each start with its variables."""

Starts = dict[str, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def starts(vllm: Any) -> Starts:
    """Give what came of every start; two go side by side, since importing vLLM uses one core."""
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda each: vllm.python(*each[0], **each[1]), STARTS.values())
        return dict(zip(STARTS, done, strict=True))


def found(starts: Starts, start: str) -> dict[str, Any]:
    """Return what was seen after a start."""
    done = starts[start]
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize("order", ORDERS)
def test_both_are_imported_in_either_order(starts: Starts, order: str) -> None:
    """VLLM defines two of our ops in the same namespace of torch; ours live in another then."""
    assert starts[order].stdout.split() == ["True", "True", "vllm_ir_core"], starts[order].stderr[-2000:]


def test_a_spawned_process_has_what_its_parent_has(starts: Starts) -> None:
    """Workers discover for themselves."""
    on = found(starts, "on")
    assert on["spawned"] == on["ops"]
    assert "cpu_c" in on["ops"]["rms_norm"]


def test_strict_validation_knows_our_variables(starts: Starts) -> None:
    """Also where the host is switched off, by a variable of that kind; without it vLLM refuses them."""
    assert found(starts, "on")["strict"] == found(starts, "off")["strict"] == ""
    assert "Unknown vLLM environment variable detected: VLLM_IR_" in found(starts, "without")["strict"]


def test_switched_off_vllm_is_as_if_the_host_were_not_there(starts: Starts) -> None:
    """Nothing of vLLM's is touched, and nothing of ours is loaded."""
    off, without, on = (found(starts, each) for each in ("off", "without", "on"))
    known = set(off.pop("variables")) - set(without.pop("variables"))
    assert all(name.startswith("VLLM_IR_") for name in known)
    assert {**off, "strict": None} == {**without, "strict": None}
    assert off["ours"] == off["layers"] == off["platform"] == []
    assert on["platform"] == ["check_and_update_config", "get_default_ir_op_priority"]


def test_a_variable_that_names_what_is_not_there_stops_the_start(starts: Starts) -> None:
    """Before a model is looked at."""
    assert starts["misspelt"].returncode != 0
    last = starts["misspelt"].stderr.strip().splitlines()[-1]
    assert "VLLM_IR_OP_PRIORITY: provider 'cpu_d' for op 'rms_norm' is not installed" in last
    assert "Did you mean 'cpu_c'?" in last


def test_the_key_of_the_compile_cache_follows_the_implementation(starts: Starts) -> None:
    """Another provider and another build of one are other graphs; the same again is the same."""
    assert found(starts, "on")["keys"] == [2, 3]
