"""What becomes of a replaced model: it is copied, pickled, saved, trained and compiled like the one it was."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_host_transformers import restore, use_ir_ops

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hosts.transformers.tests.conftest import Zoo

Inputs = dict[str, torch.Tensor]
LAYERS = 2


def test_a_deep_copy_is_a_replaced_model_of_its_own(
    llama: Any, batch: Inputs, counts: Callable[[], dict[str, int]], zoo: Zoo
) -> None:
    """The copy runs on ops with its own weights, and restoring one leaves the other."""
    use_ir_ops(llama)
    twin = copy.deepcopy(llama)
    with torch.no_grad():
        twin.model.norm.weight.mul_(2)
    counts()
    assert torch.allclose(zoo.logits(twin, batch), 2 * zoo.logits(llama, batch))
    restore(llama)
    counts()
    zoo.logits(twin, batch)
    assert counts()["rms_norm"] == LAYERS + 1


def test_a_pickled_copy_needs_nothing_of_ours(
    llama: Any, batch: Inputs, counts: Callable[[], dict[str, int]], zoo: Zoo
) -> None:
    """What pickle brings elsewhere is the model as it was, and it can be put on ops there."""
    wanted = zoo.logits(llama, batch)
    use_ir_ops(llama)
    data = pickle.dumps(llama)
    assert b"vllm_ir" not in data
    other = pickle.loads(data)  # noqa: S301 - our own bytes
    counts()
    assert torch.equal(zoo.logits(other, batch), wanted)
    assert counts() == {}
    assert use_ir_ops(other).ops["rms_norm"] == LAYERS + 1
    assert torch.equal(zoo.logits(other, batch), wanted)


def test_saving_a_replaced_model_writes_the_same_files(llama: Any, tmp_path: Path) -> None:
    """`save_pretrained` knows nothing of the replacement."""
    llama.save_pretrained(tmp_path / "before")
    use_ir_ops(llama)
    llama.save_pretrained(tmp_path / "after")
    for file in sorted((tmp_path / "before").iterdir()):
        assert file.read_bytes() == (tmp_path / "after" / file.name).read_bytes(), file.name


@pytest.mark.parametrize("checkpointing", [None, False, True], ids=["plain", "non-reentrant", "reentrant"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_training_step_has_the_gradients_of_the_model(
    name: str, checkpointing: bool | None, batch: Inputs, zoo: Zoo
) -> None:
    """Every parameter gets the gradient it got before, with and without gradient checkpointing."""
    model = zoo.build(name).train()
    if checkpointing is not None:
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": checkpointing})

    def gradients() -> dict[str, torch.Tensor]:
        """Return the gradients of one step."""
        model.zero_grad()
        model(**batch, labels=batch["input_ids"]).loss.backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    before = gradients()
    use_ir_ops(model)
    after = gradients()
    assert set(after) == set(before)
    for name_, gradient in after.items():
        torch.testing.assert_close(gradient, before[name_], rtol=1e-4, atol=1e-6)


def test_compiled_it_is_one_graph_with_the_ops_in_it(llama: Any, batch: Inputs, zoo: Zoo) -> None:
    """`torch.compile` sees the whole model without a break, and each op as one node."""
    wanted = zoo.logits(llama, batch)
    use_ir_ops(llama)
    seen: list[str] = []

    def look(graph: torch.fx.GraphModule, _: list[Any]) -> Any:
        """Keep the ops of a graph and run it as it is."""
        seen.extend(str(node.target) for node in graph.graph.nodes if "vllm_ir" in str(node.target))
        return graph.forward

    compiled: Any = torch.compile(llama, backend=look, fullgraph=True)
    with torch.no_grad():
        got = compiled(**batch, use_cache=False).logits
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    found = {name: sum(f".{name}." in f"{target}." for target in seen) for name in use_ir_ops(llama).ops}
    assert found == use_ir_ops(llama).ops


def test_a_replaced_and_an_untouched_model_compile_side_by_side(batch: Inputs, zoo: Zoo) -> None:
    """Compiled code of one model never serves the other, whose class is the same."""
    one, other = zoo.build("llama", seed=1), zoo.build("llama", seed=2)
    wanted = zoo.logits(one, batch), zoo.logits(other, batch)
    use_ir_ops(one)
    compiler: Any = torch.compile
    for model, right in zip((one, other), wanted, strict=True):
        compiled = compiler(model, backend="eager")
        with torch.no_grad():
            torch.testing.assert_close(compiled(**batch, use_cache=False).logits, right, rtol=1e-5, atol=1e-5)
