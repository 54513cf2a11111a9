"""Replace vLLM's own classes and run them with each platform faked: `python layers.py`; a JSON object on stdout."""

from __future__ import annotations

import json
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from vllm_ir_host_vllm.layers.replacing import replace

PLATFORMS = ("cuda", "rocm", "xpu", "cpu", "out_of_tree", "tpu")
CLASSES = {
    "RMSNorm": ("layernorm", (64,), {"dtype": torch.bfloat16}),
    "GemmaRMSNorm": ("layernorm", (64,), {}),
    "SiluAndMul": ("activation", (), {}),
    "GeluAndMul": ("activation", ("tanh",), {}),
    "RotaryEmbedding": ("rotary_embedding", (16, 16, 32, 10000.0, True, torch.bfloat16), {}),
    "Llama3RotaryEmbedding": (
        "rotary_embedding.llama3_rope",
        (16, 16, 32, 10000.0, True, torch.bfloat16, 8.0, 1.0, 4.0, 16),
        {},
    ),
}


def make() -> dict[str, Any]:
    """Make one layer of each class, as a model does."""
    made: dict[str, Any] = {}
    for name, (module, arguments, named) in CLASSES.items():
        layer = getattr(import_module(f"vllm.model_executor.layers.{module}"), name)(*arguments, **named)
        if "Norm" in name:
            layer.weight.data.copy_(torch.linspace(-1, 1, 64))
        made[name] = layer
    return made


def run(name: str, method: Any) -> list[torch.Tensor]:
    """Run a method of a layer on its own copies of the same inputs."""
    torch.manual_seed(0)
    x, other = (torch.randn(5, 64, dtype=torch.bfloat16) for _ in range(2))
    if "Norm" in name:
        return [method(x.clone()), *method(x.clone(), other.clone())]
    if "Rotary" in name:
        return list(method(torch.tensor([0, 3, 4, 9, 17]), x, other))
    return [method(torch.cat((x, other), dim=-1))]


def main() -> None:
    """Compare, platform by platform."""
    config = import_module("vllm.config")
    custom_op: Any = import_module("vllm.model_executor.custom_op")
    found: dict[str, Any] = {"differ": [], "methods": {}}
    with config.set_current_vllm_config(config.VllmConfig()), torch.no_grad():
        wanted = {name: run(name, layer.forward_native) for name, layer in make().items()}
        done = replace(custom_op.op_registry_oot, lambda _kind: None)
        made = make()
        for platform in PLATFORMS:
            answers = {f"is_{each}": lambda answer=each == platform: answer for each in PLATFORMS}
            custom_op.current_platform = SimpleNamespace(**answers)
            for name, layer in made.items():
                method = layer.dispatch_forward(compile_native=False)
                found["methods"].setdefault(platform, method.__qualname__)
                pairs = zip(run(name, method), wanted[name], strict=True)
                if not all(torch.equal(got, want) for got, want in pairs):
                    found["differ"].append([platform, name])
    found["classes"] = {name: type(layer).__name__ for name, layer in made.items()}
    found["names"] = {name: cls.name for name, cls in custom_op.op_registry_oot.items()}
    found["replaced"], found["left"] = list(done.replaced), dict(done.left)
    print(json.dumps(found))  # noqa: T201 - what it is run for


if __name__ == "__main__":
    main()
