"""Second stream: the kernel runs on the stream that is current, not on the default one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from vllm_ir_testkit.checks import gpu
from vllm_ir_testkit.checks.values import disagreement

if TYPE_CHECKING:
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "second_stream"
SENTENCE: Final = "the kernel runs on the current stream"

_CYCLES: Final = 50_000_000
"""Some 30 ms of a GPU's clock: long enough for a kernel on another stream to read what is not written yet."""


def check(subject: Subject, notes: Notes) -> None:
    """Fill the inputs late on a second stream, call there, and compare with native."""
    if not gpu.ready(subject, notes):
        return
    for case in subject.plain():
        notes.tried()
        final = subject.build(case)
        args = tuple(torch.zeros_like(x) if isinstance(x, torch.Tensor) else x for x in final)
        subject.run(subject.build(case))
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(_CYCLES)  # noqa: SLF001 - torch's own tests wait so
            for late, x in zip(args, final, strict=True):
                if isinstance(x, torch.Tensor):
                    late.copy_(x)
            outputs = subject.run(args)
        stream.synchronize()
        what = disagreement(subject, case, outputs, subject.native(final), {})
        if what is not None:
            notes.fault(case, f"on a second stream: {what}")
