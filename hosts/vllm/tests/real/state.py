"""Print what vLLM is made of once its plugins are loaded: `python state.py`; a JSON object on stdout."""

from __future__ import annotations

import json
import sys
from importlib import import_module


def main() -> None:
    """Load plugins, as every process of vLLM does, and look at all that a host may touch."""
    import_module("vllm.plugins").load_general_plugins()
    ops = import_module("vllm.ir.op").IrOp.registry
    found = {
        "ops": {name: sorted(op.impls) for name, op in ops.items()},
        "layers": sorted(import_module("vllm.model_executor.custom_op").op_registry_oot),
        "platform": sorted(vars(import_module("vllm.platforms").current_platform)),
        "loader": import_module("vllm.model_executor.model_loader.base_loader").BaseModelLoader.load_model.__module__,
        "variables": sorted(import_module("vllm.envs").environment_variables),
        "ours": sorted(name for name in sys.modules if name == "vllm_ir.runtime"),
    }
    print(json.dumps(found))  # noqa: T201 - what it is run for


if __name__ == "__main__":
    main()
