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

OURS = {"VLLM_IR_HOST": "1", "VLLM_IR_OP_PRIORITY": "rms_norm=cpu_c", "VLLM_IR_STRICT": "1"}


STARTS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    **{order: (("-c", script + BOTH), {}) for order, script in ORDERS.items()},
    "accepted": (("-c", STRICT), OURS),
    "accepted off": (("-c", STRICT), {**OURS, "VLLM_IR_HOST": "0"}),
    "refused": (("-c", STRICT), {**OURS, "VLLM_PLUGINS": ""}),
    "off": ((STATE,), {"VLLM_IR_HOST": "0"}),
    "without": ((STATE,), {"VLLM_PLUGINS": ""}),
    "on": ((STATE,), {}),
    "misspelt": ((STATE,), {"VLLM_IR_OP_PRIORITY": "rms_norm=cpu_d"}),
    "keys": (("-c", HASHES), {}),
}
"""Each start with its variables."""

Starts = dict[str, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def starts(vllm: Any, tmp_path_factory: pytest.TempPathFactory) -> Starts:
    """Give what came of every start; two go side by side, since importing vLLM uses one core."""
    script = tmp_path_factory.mktemp("spawned") / "spawned.py"
    script.write_text(SPAWNED, encoding="utf-8")
    todo = {**STARTS, "spawned": ((str(script),), {})}
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda each: vllm.python(*each[0], **each[1]), todo.values())
        return dict(zip(todo, done, strict=True))


@pytest.mark.parametrize("order", ORDERS)
def test_both_are_imported_in_either_order(starts: Starts, order: str) -> None:
    """VLLM defines two of our ops in the same namespace of torch; ours live in another then."""
    assert starts[order].stdout.split() == ["True", "True", "vllm_ir_core"], starts[order].stderr[-2000:]


def test_a_spawned_process_has_what_its_parent_has(starts: Starts) -> None:
    """Workers discover for themselves."""
    done = starts["spawned"]
    assert done.returncode == 0, done.stderr[-2000:]
    theirs, mine = json.loads(done.stdout.splitlines()[-1])
    assert theirs == mine
    assert "cpu_c" in theirs["rms_norm"]


@pytest.mark.parametrize("start", ["accepted", "accepted off"])
def test_strict_validation_knows_our_variables(starts: Starts, start: str) -> None:
    """Also where the host is switched off, by a variable of that kind."""
    assert starts[start].stdout.strip().endswith("accepted"), starts[start].stderr[-2000:]
    assert starts["refused"].returncode != 0
    assert "Unknown vLLM environment variable detected: VLLM_IR_" in starts["refused"].stderr


def test_switched_off_vllm_is_as_if_the_host_were_not_there(starts: Starts) -> None:
    """Nothing of vLLM's is touched, and nothing of ours is loaded."""
    off, without, on = (json.loads(starts[each].stdout.splitlines()[-1]) for each in ("off", "without", "on"))
    known = set(off.pop("variables")) - set(without.pop("variables"))
    assert all(name.startswith("VLLM_IR_") for name in known)
    assert off == without
    assert off["ours"] == off["layers"] == off["platform"] == []
    assert "cpu_c" in on["ops"]["rms_norm"]
    assert on["platform"] == ["check_and_update_config", "get_default_ir_op_priority"]


def test_a_variable_that_names_what_is_not_there_stops_the_start(starts: Starts) -> None:
    """Before a model is looked at."""
    assert starts["misspelt"].returncode != 0
    last = starts["misspelt"].stderr.strip().splitlines()[-1]
    assert "VLLM_IR_OP_PRIORITY: provider 'cpu_d' for op 'rms_norm' is not installed" in last
    assert "Did you mean 'cpu_c'?" in last


def test_the_key_of_the_compile_cache_follows_the_implementation(starts: Starts) -> None:
    """Another provider and another build of one are other graphs; the same again is the same."""
    assert starts["keys"].stdout.split() == ["2", "3"], starts["keys"].stderr[-2000:]
