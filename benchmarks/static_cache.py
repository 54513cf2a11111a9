"""Growing and static caches, eager and compiled: which answers are the same, and how long tokens take.

The default model answers some of the prompts beside this script greedily in four ways in turn, in one process, by one
provider: eagerly and compiled with `exact`, each with a growing and with a static cache. Compiled answers are held
against eager ones with the same cache, and where they part the gap of log probabilities is shown, as the eager model
has it there. Ratios of time are medians over whole answers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import transformers
import vllm_ir
from vllm_ir.environment import Environment
from vllm_ir_host_transformers import use_ir_ops
from vllm_ir_host_transformers.compiling import TOKENS, compiled
from vllm_ir_host_transformers.models.default import default_model
from vllm_ir_host_transformers.models.steps import Silence

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.greedy import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

CACHES: Final = {"growing": None, "static": "static"}
WAYS: Final = tuple((mode, cache) for mode in ("eager", "compiled") for cache in CACHES)


def speak(model: Any, ids: torch.Tensor, tokens: int, cache: str) -> tuple[tuple[int, ...], torch.Tensor, float]:
    """Return the tokens of a greedy answer, the logits behind them, and the seconds that it took."""
    options = {"return_dict_in_generate": True, "output_logits": True, "cache_implementation": CACHES[cache]}
    begin = time.perf_counter()
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **options)
    took = time.perf_counter() - begin
    return tuple(out.sequences[0, ids.shape[1] :].tolist()), torch.stack(out.logits)[:, 0], took


def part(prompt: str, one: tuple[Any, ...], other: tuple[Any, ...]) -> str | None:
    """Return where the second answer leaves the first and by how little, or None where it does not."""
    if one[0] == other[0]:
        return None
    at = next(i for i, pair in enumerate(zip(one[0], other[0], strict=False)) if pair[0] != pair[1])
    likely = torch.log_softmax(one[1][at].float(), dim=-1)
    return f"  token {at}, gap {float(likely[one[0][at]] - likely[other[0][at]]):.4f}: {prompt}"


def compare(model: Any, tokenizer: Any, prompts: Sequence[str], tokens: int, caches: Sequence[str]) -> list[str]:
    """Let a model answer every prompt in every way, compiled with these caches, and return what became of it."""
    ways = [(mode, cache) for mode, cache in WAYS if mode == "eager" or cache in caches]
    eager = model.forward
    with compiled(model) as graphs:
        forward, begin = model.forward, time.perf_counter()
        for cache in caches:
            speak(model, encode(tokenizer, prompts[0]), TOKENS, cache)
            print(f"# {len(graphs)} graphs after {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
        times: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
        partings: dict[tuple[str, str, str], list[str]] = {}
        bits = dict.fromkeys(caches, 0)
        for number, prompt in enumerate(prompts):
            ids, said = encode(tokenizer, prompt), {}
            # Whoever goes first finds the processor in another state, so they take turns in that as well.
            for mode, cache in ways[number % len(ways) :] + ways[: number % len(ways)]:
                model.__dict__["forward"] = forward if mode == "compiled" else eager
                said[mode, cache] = speak(model, ids, tokens, cache)
                times[mode, cache].append(said[mode, cache][2])
            for cache in caches:
                one, other = said["eager", cache], said["compiled", cache]
                bits[cache] += one[0] == other[0] and torch.equal(one[1], other[1])
                partings.setdefault((cache, "compiled", "eager"), []).extend(filter(None, [part(prompt, one, other)]))
            pair = said["eager", "growing"], said["eager", "static"]
            partings.setdefault(("eager", "static", "growing"), []).extend(filter(None, [part(prompt, *pair)]))
            print(f"# {number + 1} { ({way: round(each[-1], 1) for way, each in times.items()}) }", file=sys.stderr)
        model.__dict__["forward"] = forward
    lines = []
    for (what, one_name, other_name), found in partings.items():
        lines += [f"{what}: {len(prompts) - len(found)} of {len(prompts)}, {one_name} as {other_name}", *found]
    lines.append(f"of compiled answers with eager's bits in every logit: {bits}")
    first = times["eager", "growing"]
    for way, each in times.items():
        ratio = statistics.median(a / b for a, b in zip(first, each, strict=True))
        lines.append(f"{way[0]}, {way[1]} cache: {ratio:.2f} times as fast as eager with a growing cache")
    return [*lines, f"graphs: {[graph.stage for graph in graphs]}"]


def main() -> int:
    """Compare, print, and return 1 if compiling changed an answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32,bfloat16", help="apart by commas")
    parser.add_argument("--providers", default="native,cpu_c", help="apart by commas")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer, at most")
    parser.add_argument("--prompts", type=int, default=10, help="how many of the prompts, evenly spread")
    parser.add_argument("--caches", default="growing,static", help="to compile with; apart by commas")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    every = Path(__file__).with_name("prompts.txt").read_text(encoding="utf-8").splitlines()
    prompts = every[:: max(1, len(every) // options.prompts)][: options.prompts]
    folder = default_model(Environment.read().cache, Silence())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    changed = False
    for dtype in options.dtypes.split(","):
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        use_ir_ops(model)
        for provider in options.providers.split(","):
            with vllm_ir.IrOpPriorityConfig.with_default([provider]).set_priority(), torch.inference_mode():
                lines = compare(model, tokenizer, prompts, options.tokens, options.caches.split(","))
            print(f"{dtype} {provider}", *lines, sep="\n", flush=True)
            changed |= any("compiled as eager" in line and line.split()[1] != line.split()[3][:-1] for line in lines)
    return int(changed)


if __name__ == "__main__":
    raise SystemExit(main())
