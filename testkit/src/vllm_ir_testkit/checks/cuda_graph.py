"""CUDA graph: the call can be captured, and a replay reads the inputs that are there then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from vllm_ir_testkit.cases import Case
from vllm_ir_testkit.checks import gpu
from vllm_ir_testkit.checks.values import disagreement
from vllm_ir_testkit.notes import in_words

if TYPE_CHECKING:
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "cuda_graph"
SENTENCE: Final = "the call can be captured in a CUDA graph and replayed with other inputs"


def check(subject: Subject, notes: Notes) -> None:
    """Capture a plain call of each dtype, put other inputs into its memory, replay, and compare with native."""
    if not gpu.ready(subject, notes):
        return
    for case in subject.plain():
        notes.tried()
        args = subject.build(case)
        other = Case(tokens=case.tokens, dtype=case.dtype, seed=1)
        try:
            subject.run(args)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = subject.run(args)
        except Exception as error:  # noqa: BLE001 - any exception is the fault that is looked for
            notes.fault(case, f"capture raised {in_words(error)}")
            torch.cuda.synchronize()
            continue
        for captured, x in zip(args, subject.build(other), strict=True):
            if isinstance(x, torch.Tensor):
                captured.copy_(x)
        graph.replay()
        torch.cuda.synchronize()
        what = disagreement(subject, other, outputs, subject.native(subject.build(other)), {})
        if what is not None:
            notes.fault(case, f"after a replay: {what}")
