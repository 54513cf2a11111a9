"""Processes that start otherwise: other orders of imports, spawned workers, strict variables, a switched-off host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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

SPAWNED = """
import json, multiprocessing
def tell(queue):
    from vllm.plugins import load_general_plugins
    load_general_plugins()
    from vllm.ir.op import IrOp
    queue.put({name: list(op.impls) for name, op in IrOp.registry.items()})
if __name__ == "__main__":
    from vllm.plugins import load_general_plugins
    load_general_plugins()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=tell, args=(queue,))
    worker.start()
    theirs = queue.get(timeout=300)
    worker.join()
    from vllm.ir.op import IrOp
    print(json.dumps([theirs, {name: list(op.impls) for name, op in IrOp.registry.items()}]))
"""

HASHES = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.config.kernel import IrOpPriorityConfig
from vllm.ir.op import IrOp
def key(provider):
    return IrOpPriorityConfig(rms_norm=[provider]).compute_hash()
keys = [key("native"), key("cpu_c"), key("cpu_c")]
IrOp.registry["rms_norm"].impls["cpu_c"].uuid = lambda: "of another build"
print(len(set(keys)), len({*keys, key("cpu_c")}))
"""

STRICT = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.platforms import current_platform
current_platform.validate_environ(hard_fail=True)
print("accepted")
"""


@pytest.mark.parametrize("order", ORDERS)
def test_both_are_imported_in_either_order(vllm: Any, order: str) -> None:
    """VLLM defines two of our ops in the same namespace of torch; ours live in another then."""
    done = vllm.python("-c", ORDERS[order] + BOTH)
    assert done.stdout.split() == ["True", "True", "vllm_ir_core"], done.stderr[-2000:]


def test_a_spawned_process_has_what_its_parent_has(vllm: Any, tmp_path: Any) -> None:
    """Workers discover for themselves."""
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED, encoding="utf-8")
    done = vllm.python(str(script))
    assert done.returncode == 0, done.stderr[-2000:]
    theirs, mine = json.loads(done.stdout.splitlines()[-1])
    assert theirs == mine
    assert "cpu_c" in theirs["rms_norm"]


@pytest.mark.parametrize("switch", ["1", "0"])
def test_strict_validation_knows_our_variables(vllm: Any, switch: str) -> None:
    """Also where the host is switched off, by a variable of that kind."""
    ours = {"VLLM_IR_HOST": switch, "VLLM_IR_OP_PRIORITY": "rms_norm=cpu_c", "VLLM_IR_STRICT": "1"}
    done = vllm.python("-c", STRICT, **ours)
    assert done.stdout.strip().endswith("accepted"), done.stderr[-2000:]
    refused = vllm.python("-c", STRICT, VLLM_PLUGINS="", **ours)
    assert refused.returncode != 0
    assert "Unknown vLLM environment variable detected: VLLM_IR_" in refused.stderr


def test_switched_off_vllm_is_as_if_the_host_were_not_there(vllm: Any) -> None:
    """Nothing of vLLM's is touched, and nothing of ours is loaded."""
    off, without, on = (
        json.loads(vllm.python(STATE, **variables).stdout.splitlines()[-1])
        for variables in ({"VLLM_IR_HOST": "0"}, {"VLLM_PLUGINS": ""}, {})
    )
    known = set(off.pop("variables")) - set(without.pop("variables"))
    assert all(name.startswith("VLLM_IR_") for name in known)
    assert off == without
    assert off["ours"] == off["layers"] == off["platform"] == []
    assert "cpu_c" in on["ops"]["rms_norm"]
    assert on["platform"] == ["check_and_update_config", "get_default_ir_op_priority"]


def test_a_variable_that_names_what_is_not_there_stops_the_start(vllm: Any) -> None:
    """Before a model is looked at."""
    done = vllm.python(STATE, VLLM_IR_OP_PRIORITY="rms_norm=cpu_d")
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "VLLM_IR_OP_PRIORITY: provider 'cpu_d' for op 'rms_norm' is not installed" in last
    assert "Did you mean 'cpu_c'?" in last


def test_the_key_of_the_compile_cache_follows_the_implementation(vllm: Any) -> None:
    """Another provider and another build of one are other graphs; the same again is the same."""
    done = vllm.python("-c", HASHES)
    assert done.stdout.split() == ["2", "3"], done.stderr[-2000:]
