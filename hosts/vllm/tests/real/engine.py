"""Ask a real vLLM in this process: `python engine.py MODEL`, and on stdin one JSON object a line for each engine.

It says whether to run eager, what `vllm.LLM` takes besides (`more`), whether vLLM's IR ops raise from now on
(`forbid_ir_ops`), how many `tokens`, and which file gets the answers (`out`). One engine answers all that is asked of
it in a row.
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
    """Return how often each provider ran each op, nothing where vllm-ir is not here or does not count."""
    if "vllm_ir.runtime" not in sys.modules:
        return {}
    return {name: dict(op.calls) for name, op in import_module("vllm_ir").report().ops.items()}


def since(before: dict[str, dict[str, int]], now: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return what was counted between two looks, without what was not called."""
    new = {op: {who: n - before.get(op, {}).get(who, 0) for who, n in calls.items()} for op, calls in now.items()}
    return {op: {who: n for who, n in calls.items() if n} for op, calls in new.items()}


class Engines:
    """The engine that was asked last, which stays until another is wanted.

    Args:
        model: the folder of the model that each engine loads.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self._asked: tuple[bool, dict[str, Any]] | None = None
        self._llm: Any = None

    def answer(self, run: dict[str, Any]) -> dict[str, Any]:
        """Return greedy answers, with the two likeliest tokens at each place, and how long they took."""
        if run.get("forbid_ir_ops"):
            forbid_ir_ops()
        before, begun = counts(), time.perf_counter()
        llm = self._engine(run["eager"], run.get("more", {}))
        started = time.perf_counter() - begun
        sampling = import_module("vllm").SamplingParams(temperature=0, max_tokens=run.get("tokens", 24), logprobs=2)
        chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        start, busy = time.perf_counter(), time.process_time()
        replies = llm.chat(chats, sampling, use_tqdm=False)
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        answers = []
        for reply in replies:
            done = reply.outputs[0]
            pairs = [sorted((each.logprob for each in place.values()), reverse=True)[:2] for place in done.logprobs]
            answers.append({"text": done.text, "tokens": list(done.token_ids), "pairs": pairs})
        took = {"seconds": seconds, "processor": busy, "started": started}
        return {"answers": answers, **took, "counts": since(before, counts())}

    def close(self) -> None:
        """End the engine that stayed, and give its memory back."""
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = self._asked = None
            gc.collect()
            import_module("vllm.distributed").cleanup_dist_env_and_memory()

    def _engine(self, eager: bool, more: dict[str, Any]) -> Any:
        """Return the engine that is wanted: the one that stayed, or a new one."""
        if self._asked != (eager, more):
            self.close()
            small = {"dtype": "bfloat16", "max_model_len": 128, "max_num_seqs": 16, "seed": 0}
            self._llm = import_module("vllm").LLM(self.model, enforce_eager=eager, **small, **more)
            self._asked = eager, more
        return self._llm


def main(model: str) -> None:
    """Answer what is asked until nobody asks any more."""
    engines = Engines(model)
    for line in sys.stdin:
        run = json.loads(line)
        found, out = engines.answer(run), Path(run["out"])
        half = out.with_suffix(".half")
        half.write_text(json.dumps(found), encoding="utf-8")
        half.replace(out)  # whole, or not there
    engines.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
