"""Whether compiling changes what a real model says, and what it gains from end to end.

The prompts beside this script were fixed before anything was compiled. For each of them the default model answers
greedily, eagerly and compiled in turn, in one process, by one provider; tokens are compared, and where they part, the
gap between the two tokens' log probabilities is shown, as the eager model has it there. With `exact` the tokens are to
be the same, or the gap below 0.01; without it, differences are counted. The ratio of time is the
median over whole answers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
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
from benchmarks.greedy import encode, speak

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CLOSE: Final = 0.01
"""A gap of log probabilities below which two tokens are as good as one another."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a compiled answer leaves the eager one.

    Attributes:
        prompt: the question.
        at: the index of the first token that differs.
        gap: by how much the eager model holds its own token for likelier, in log probability.
    """

    prompt: str
    at: int
    gap: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of all prompts.

    Attributes:
        dtype: of the weights.
        provider: of all ops.
        mode: "exact" or "default".
        prompts: how many.
        same: how many answers have eager's tokens.
        partings: of the others.
        compile_seconds: before the first answer, a few forward passes included.
        graphs: how many were compiled.
        ratio: how many times as fast as eager, the median over the answers.
        eager_seconds: of all answers.
        compiled_seconds: of all answers.
        providers: by op, who was selected.
    """

    dtype: str
    provider: str
    mode: str
    prompts: int
    same: int
    partings: tuple[Parting, ...]
    compile_seconds: float
    graphs: int
    ratio: float
    eager_seconds: float
    compiled_seconds: float
    providers: dict[str, list[str]]

    def __str__(self) -> str:
        """Return a line, and one for each difference."""
        lines = [f"{self.dtype} {self.provider} {self.mode}: {self.same} of {self.prompts} as eager, the median"]
        lines[0] += f" {self.ratio:.2f} times as fast; {self.graphs} graphs"
        lines[0] += f" compiled in {self.compile_seconds:.0f} s"
        lines += [f"  token {each.at}, gap {each.gap:.4f}: {each.prompt}" for each in self.partings]
        return "\n".join(lines)


def part(model: Any, ids: torch.Tensor, eager: Sequence[int], other: Sequence[int], prompt: str) -> Parting | None:
    """Return where two answers part, or None where they do not."""
    if eager == other:
        return None
    at = next(i for i, pair in enumerate(zip(eager, other, strict=False)) if pair[0] != pair[1])
    # Generated again, not read off one long prompt: a prompt and single tokens round differently.
    settings: dict[str, Any] = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=at + 1, **settings)
    likely = torch.log_softmax(made.logits[at][0].float(), dim=-1)
    return Parting(prompt, at, float(likely[eager[at]] - likely[other[at]]))


def compare(model: Any, tokenizer: Any, prompts: Sequence[str], provider: str, mode: str, tokens: int) -> Outcome:
    """Let a model answer every prompt eagerly and compiled, in turn, and return what became of it."""
    eager: Callable[..., Any] = model.forward
    with compiled(model, exact=mode == "exact") as graphs:
        begin = time.perf_counter()
        speak(model, encode(tokenizer, prompts[0]), TOKENS)
        seconds = time.perf_counter() - begin
        forward = model.forward
        print(f"# {len(graphs)} graphs compiled in {seconds:.0f} s", file=sys.stderr, flush=True)
        times: dict[str, list[float]] = {"eager": [], "compiled": []}
        partings = []
        for number, prompt in enumerate(prompts):
            ids = encode(tokenizer, prompt)
            answers = {}
            # Whoever goes first finds the processor in another state, so they take turns in that as well.
            for which in ("eager", "compiled") if number % 2 else ("compiled", "eager"):
                model.__dict__["forward"] = forward if which == "compiled" else eager
                answers[which], took = speak(model, ids, tokens)
                times[which].append(took)
            model.__dict__["forward"] = eager
            found = part(model, ids, answers["eager"], answers["compiled"], prompt)
            partings += [] if found is None else [found]
            last = {which: round(seconds[-1], 2) for which, seconds in times.items()}
            print(f"# {number + 1} {last} {found or 'same'}", file=sys.stderr, flush=True)
    return Outcome(
        dtype=str(model.dtype).removeprefix("torch."),
        provider=provider,
        mode=mode,
        prompts=len(prompts),
        same=len(prompts) - len(partings),
        partings=tuple(partings),
        compile_seconds=seconds,
        graphs=len(graphs),
        # A machine that stalls for seconds spoils a sum, and leaves the median alone.
        ratio=statistics.median(a / b for a, b in zip(times["eager"], times["compiled"], strict=True)),
        eager_seconds=sum(times["eager"]),
        compiled_seconds=sum(times["compiled"]),
        providers={op: sorted({who for graph in graphs for who in graph.places[op]}) for op in graphs[0].places},
    )


def main() -> int:
    """Compare, print, and return 1 if `exact` changed an answer on more than a tie."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32,bfloat16", help="apart by commas")
    parser.add_argument("--providers", default="native,cpu_c", help="apart by commas")
    parser.add_argument("--modes", default="exact,default", help="exact keeps eager's roundings; apart by commas")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer, at most")
    parser.add_argument("--prompts", type=int, default=50, help="how many of the prompts")
    parser.add_argument("--json", type=Path, help="a file to which a line is added for each outcome")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    prompts = Path(__file__).with_name("prompts.txt").read_text(encoding="utf-8").splitlines()[: options.prompts]
    folder = default_model(Environment.read().cache, Silence())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    changed = False
    for dtype in options.dtypes.split(","):
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        use_ir_ops(model)
        for provider in options.providers.split(","):
            for mode in options.modes.split(","):
                priority = vllm_ir.IrOpPriorityConfig.with_default([provider])
                with priority.set_priority(), torch.inference_mode():
                    found = compare(model, tokenizer, prompts, provider, mode, options.tokens)
                print(found, flush=True)
                changed |= mode == "exact" and any(abs(each.gap) >= CLOSE for each in found.partings)
                if options.json:
                    with options.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(found)) + "\n")
    return int(changed)


if __name__ == "__main__":
    raise SystemExit(main())
