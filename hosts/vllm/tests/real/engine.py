"""Ask a real vLLM in this process: `python engine.py MODEL PLAN OUT`.

PLAN is a JSON list of runs, one engine after the other; OUT gets a JSON object of answers by the name of the run.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

PROMPTS = (
    "What is the capital of France?",
    "Who wrote Hamlet?",
    "Name three primary colours.",
    "What is 17 plus 25?",
    "Explain gravity in one sentence.",
    "Translate good morning to Spanish.",
    "What is the boiling point of water?",
    "Name the largest planet.",
    "Give me a short poem about the sea.",
    "How many days has a leap year?",
)


def forbid_ir_ops() -> None:
    """Let every IR op of vLLM raise when it is called."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        """Fail."""
        raise RuntimeError("an op of vllm.ir was called")

    for op in import_module("vllm.ir.op").IrOp.registry.values():
        for each in filter(None, (op, getattr(op, "maybe_inplace", None))):
            each.dispatch = each.torch_op = each._inner_call = refuse


def counts() -> dict[str, dict[str, int]]:
    """Return how often each provider ran each op, if vllm-ir is in this process and counts."""
    if "vllm_ir.runtime" not in sys.modules:
        return {}
    return {name: dict(op.calls) for name, op in import_module("vllm_ir").report().ops.items()}


def ask(model: str, run: dict[str, Any]) -> dict[str, Any]:
    """Return the greedy answers of one engine, with the two likeliest tokens at each place, and how long it took."""
    vllm = import_module("vllm")
    extra = {key: run[key] for key in ("kernel_config", "additional_config") if key in run}
    llm = vllm.LLM(
        model, dtype="bfloat16", enforce_eager=run["eager"], max_model_len=512, max_num_seqs=16, seed=0, **extra
    )
    if run.get("forbid_ir_ops"):
        forbid_ir_ops()
    sampling = vllm.SamplingParams(temperature=0, max_tokens=24, logprobs=2)
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    seconds = []
    for _ in range(run.get("times", 1)):
        start = time.perf_counter()
        replies = llm.chat(chats, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    answers = []
    for reply in replies:
        done = reply.outputs[0]
        pairs = [sorted((each.logprob for each in place.values()), reverse=True)[:2] for place in done.logprobs]
        answers.append({"text": done.text, "tokens": list(done.token_ids), "pairs": pairs})
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    import_module("vllm.distributed").cleanup_dist_env_and_memory()
    return {"answers": answers, "seconds": min(seconds), "counts": counts()}


def main(model: str, plan: str, out: str) -> None:
    """Run a plan."""
    runs = json.loads(Path(plan).read_text(encoding="utf-8"))
    found = {run["name"]: ask(model, run) for run in runs}
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
