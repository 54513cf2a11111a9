"""Print what vLLM is made of once its plugins are loaded: `python state.py [LOOK...]`; a JSON object on stdout.

Of further looks there are `strict`, vLLM's validation of its variables, `keys`, how many keys of its compile cache
differ, and `spawned`, the ops of a process that this one spawns.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from importlib import import_module
from typing import Any


def load() -> None:
    """Load plugins, as every process of vLLM does."""
    import_module("vllm.plugins").load_general_plugins()


def ops() -> dict[str, list[str]]:
    """Return the implementations of each of vLLM's ops."""
    return {name: sorted(op.impls) for name, op in import_module("vllm.ir.op").IrOp.registry.items()}


def state() -> dict[str, Any]:
    """Return all that a host may touch."""
    loader = import_module("vllm.model_executor.model_loader.base_loader").BaseModelLoader
    return {
        "ops": ops(),
        "layers": sorted(import_module("vllm.model_executor.custom_op").op_registry_oot),
        "platform": sorted(vars(import_module("vllm.platforms").current_platform)),
        "loader": loader.load_model.__module__,
        "variables": sorted(import_module("vllm.envs").environment_variables),
        "ours": sorted(name for name in sys.modules if name == "vllm_ir.runtime"),
    }


def strict() -> str:
    """Return what vLLM says against variables that it does not know, nothing where it knows them all."""
    try:
        import_module("vllm.platforms").current_platform.validate_environ(hard_fail=True)
    except ValueError as error:
        return str(error)
    return ""


def keys() -> list[int]:
    """Return how many keys two providers have, one of them asked twice, and how many with another build of it."""
    config = import_module("vllm.config.kernel").IrOpPriorityConfig

    def key(provider: str) -> str:
        """Return the key with one provider first."""
        return str(config(rms_norm=[provider]).compute_hash())

    found = [key("native"), key("cpu_c"), key("cpu_c")]
    import_module("vllm.ir.op").IrOp.registry["rms_norm"].impls["cpu_c"].uuid = lambda: "of another build"
    return [len(set(found)), len({*found, key("cpu_c")})]


def tell(queue: Any) -> None:
    """Load plugins and put the ops of this process into a queue."""
    load()
    queue.put(ops())


def spawned() -> dict[str, list[str]]:
    """Return the ops of a process that is spawned."""
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    worker = context.Process(target=tell, args=(queue,))
    worker.start()
    found: dict[str, list[str]] = queue.get(timeout=300)
    worker.join()
    return found


LOOKS = {"strict": strict, "spawned": spawned, "keys": keys}


def main(*looks: str) -> None:
    """Load plugins and look."""
    load()
    found = {**state(), **{look: LOOKS[look]() for look in looks}}
    print(json.dumps(found))  # noqa: T201 - what it is run for


if __name__ == "__main__":
    main(*sys.argv[1:])
