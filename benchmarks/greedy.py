"""Whether a switch of provider changes what a real model says, and what it gains from end to end.

The 50 prompts beside this script were fixed before anything was measured. For each of them the default model answers
greedily on every provider in turn, in one process; the tokens must be those of `native`, also where the two best first
tokens are nearly tied. Ratios of time are of whole answers, prompt and tokens.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
import vllm_ir
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from vllm_ir.environment import Environment
from vllm_ir_host_transformers import use_ir_ops
from vllm_ir_host_transformers.models.default import default_model
from vllm_ir_host_transformers.models.steps import Silence

if TYPE_CHECKING:
    from collections.abc import Sequence

NEAR = 0.2
"""A gap between the two best first tokens, in logits, below which a unit of rounding may turn the answer."""


def encode(tokenizer: Any, prompt: str) -> torch.Tensor:
    """Return the tokens [1, n] of a prompt in the model's chat template."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
    )
    ids: torch.Tensor = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    return ids


def first_gap(model: Any, ids: torch.Tensor) -> float:
    """Return by how much the best first token leads, in logits."""
    best = model(ids).logits[0, -1].float().topk(2).values
    return float(best[0] - best[1])


def speak(model: Any, ids: torch.Tensor, tokens: int) -> tuple[tuple[int, ...], float]:
    """Return the tokens of a greedy answer and the seconds that it took."""
    begin = time.perf_counter()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return tuple(out[0, ids.shape[1] :].tolist()), time.perf_counter() - begin


def compare(dtype: torch.dtype, prompts: Sequence[str], providers: Sequence[str], tokens: int) -> dict[str, Any]:
    """Return per provider how many answers are native's and the ratio of time, and how many first tokens are near."""
    folder = default_model(Environment.read().cache, Silence())
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    use_ir_ops(model)
    same = dict.fromkeys(providers, 0)
    seconds = dict.fromkeys(providers, 0.0)
    near = 0
    with torch.no_grad(), Progress(transient=True, console=Console(stderr=True)) as progress:
        for prompt in progress.track(prompts, description=str(dtype)):
            ids = encode(tokenizer, prompt)
            answers = {}
            for provider in providers:
                with vllm_ir.IrOpPriorityConfig.with_default([provider]).set_priority():
                    if provider == "native":
                        near += first_gap(model, ids) < NEAR
                    runs = [speak(model, ids, tokens) for _ in range(2)]
                answers[provider] = runs[0][0]
                seconds[provider] += min(run[1] for run in runs)
            for provider in providers:
                same[provider] += answers[provider] == answers["native"]
    ratios = {provider: seconds["native"] / seconds[provider] for provider in providers}
    return {"same": same, "ratios": ratios, "near": near}


def main() -> int:
    """Compare, print, and return 1 if an answer changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--providers", default="cpu_c", help="to hold against native, apart by commas")
    parser.add_argument("--tokens", type=int, default=16, help="of each answer, at most")
    parser.add_argument("--prompts", type=int, default=50, help="how many of the prompts")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    prompts = Path(__file__).with_name("prompts.txt").read_text(encoding="utf-8").splitlines()[: options.prompts]
    providers = ["native", *options.providers.split(",")]
    table = Table(title=f"Greedy answers of up to {options.tokens} tokens")
    for column in ("dtype", "provider", "same as native", "near ties", "times faster than native"):
        table.add_column(column)
    changed = False
    for dtype in (torch.float32, torch.bfloat16):
        found = compare(dtype, prompts, providers, options.tokens)
        for provider in providers[1:]:
            same = found["same"][provider]
            changed |= same != len(prompts)
            cells = (f"{same} of {len(prompts)}", str(found["near"]), f"{found['ratios'][provider]:.2f}")
            table.add_row(str(dtype), provider, *cells)
    Console().print(table)
    return int(changed)


if __name__ == "__main__":
    raise SystemExit(main())
