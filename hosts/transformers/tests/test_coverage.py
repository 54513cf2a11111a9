"""Which places of which families run on ops: a tiny random model of each keeps its bits, and the README has the table.

After a change, `WRITE_COVERAGE=1 pytest hosts/transformers/tests/test_coverage.py` writes the table anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from vllm_ir_host_transformers import use_ir_ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vllm_ir_host_transformers import Replacement

    from hosts.transformers.tests.conftest import Zoo

Inputs = dict[str, torch.Tensor]
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- coverage: begin -->\n", "<!-- coverage: end -->\n"
VERSION = "5.24"
WRITE = "WRITE_COVERAGE" in os.environ

EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
LATENT: dict[str, Any] = {
    # Keys of latent attention are common to all heads.
    "num_key_value_heads": 4,
    **EXPERTS,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "head_dim": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
LINEAR: dict[str, Any] = {
    **EXPERTS,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
COVERED: dict[str, dict[str, Any]] = {
    "afmoe": {**EXPERTS, "num_dense_layers": 1},
    "apertus": {},
    "arcee": {},
    "bitnet": {},
    "cohere": {},
    "cohere2": {},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "diffllama": {},
    "doge": {},
    "ernie4_5": {},
    "ernie4_5_moe": {**EXPERTS, "moe_num_experts": 4, "moe_k": 2},
    "exaone4": {},
    "falcon": {},
    "flex_olmo": EXPERTS,
    "gemma": {},
    "gemma2": {},
    "gemma3_text": {},
    "gemma4_text": {"vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 16, "global_head_dim": 16},
    "glm": {},
    "glm4": {},
    "glm4_moe": {**EXPERTS, "first_k_dense_replace": 1},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4},
    "gpt_neox": {},
    "gpt_oss": EXPERTS,
    "granite": {},
    "granitemoe": EXPERTS,
    "helium": {},
    "hunyuan_v1_dense": {},
    "lfm2": {},
    "llama": {},
    "llama4_text": {**EXPERTS, "intermediate_size_mlp": 96},
    "minimax_m2": EXPERTS,
    "ministral": {},
    "mistral": {},
    "mixtral": EXPERTS,
    "nanochat": {},
    "nemotron": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "olmoe": EXPERTS,
    "persimmon": {},
    "phi": {},
    "phi3": {},
    "phimoe": EXPERTS,
    "qwen2": {},
    "qwen2_moe": EXPERTS,
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "qwen3_next": LINEAR,
    "seed_oss": {},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
    "vaultgemma": {},
}
"""By the name that Transformers gives an architecture, what its tiny configuration has beyond the common part."""


def build(family: str, zoo: Zoo) -> Any:
    """Return a tiny random model of a family in eval mode whose norms have weights that matter."""
    if family not in CONFIG_MAPPING:
        pytest.skip(f"Transformers {transformers.__version__} has no {family}")
    fixed = {name for name, value in vars(CONFIG_MAPPING[family]).items() if isinstance(value, property)}
    given = {name: value for name, value in zoo.base.items() if name not in fixed}
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**given, **COVERED[family]}))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data += torch.randn_like(parameter) * 0.3
    return model.eval()


@pytest.mark.parametrize("family", COVERED)
def test_a_family_keeps_its_bits_and_calls_its_ops(
    family: str, batch: Inputs, zoo: Zoo, counts: Callable[[], dict[str, int]]
) -> None:
    """In float32 and bfloat16, with padding; every op is called as often as the report has places, at least."""
    model = build(family, zoo)
    for dtype in (torch.float32, torch.bfloat16):
        model.to(dtype)
        before = zoo.logits(model, batch)
        with use_ir_ops(model) as replacement:
            counts()
            assert torch.equal(zoo.logits(model, batch), before)
            called, places = counts(), replacement.ops
            # A norm without a weight may serve several tensors of a layer.
            assert called.keys() == places.keys()
            assert all(called[op] >= places[op] for op in places)


class Notes:
    """Reasons, each told once below the table and named in it by a letter."""

    def __init__(self) -> None:
        self._reasons: list[str] = []

    def letter(self, reason: str) -> str:
        """Return the letter of a reason."""
        told = re.sub(r"^its (apply\w+)", "its rotation", reason)
        told = re.sub(r"no \w+\(gate\)", "no act(gate)", told)
        if told not in self._reasons:
            self._reasons.append(told)
        return "abcdefghijklmnopqrstuvwxyz"[self._reasons.index(told)]

    def lines(self) -> list[str]:
        """Return a line for each reason."""
        return [f"- {self.letter(reason)}: {reason}" for reason in self._reasons]


def cell(replacement: Replacement, kinds: Iterable[str], notes: Notes, kind: str) -> str:
    """Return how many places of how many run on an op, and the letters of the reasons for the others."""
    done = sum(place.kind in kinds for place in replacement.replaced)
    left = [place.reason for place in replacement.left if place.kind == kind]
    if not done + len(left):
        return "-"
    letters = ", ".join(dict.fromkeys(notes.letter(reason) for reason in left))
    return f"{done} of {done + len(left)}{f' ({letters})' if letters else ''}"


def row(family: str, zoo: Zoo, notes: Notes) -> str:
    """Return the row of a family."""
    model = build(family, zoo)
    name = re.sub("ForCausalLM|LMHeadModel", "", type(model).__name__)
    found = use_ir_ops(model)
    adds = cell(found, {"residual"}, notes, "residual")
    norms = cell(found, {"norm", "residual"}, notes, "norm")
    gate, rotary = (cell(found, {kind}, notes, kind) for kind in ("activation", "rotary"))
    half = use_ir_ops(model.to(torch.bfloat16))
    low = sum(place.kind == "residual" for place in half.replaced)
    always = use_ir_ops(model, fuse_residual="always")
    most = sum(place.kind == "residual" for place in always.replaced)
    below = "-" if adds == "-" else f"{low}, {most}"
    return f"| {name} | {norms} | {adds} | {below} | {gate} | {rotary} |"


@pytest.mark.skipif(
    not transformers.__version__.startswith(VERSION), reason=f"needs Transformers {VERSION}, whose table it is"
)
def test_the_readme_has_the_table(zoo: Zoo) -> None:
    """What the code finds in each family is what a reader is told."""
    notes = Notes()
    rows = [row(family, zoo, notes) for family in COVERED]
    head = "| model | norm | residual add, float32 | bfloat16: by default, always | gate | rotary |"
    table = "\n".join([head, "|" + "---|" * 6, *rows, "", *notes.lines()]) + "\n"
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    stands, _, after = rest.partition(END)
    if WRITE:
        README.write_text(before + BEGIN + table + END + after, encoding="utf-8")
    else:
        assert stands == table
