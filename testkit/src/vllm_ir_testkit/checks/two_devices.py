"""Two devices: tensors of the second device are computed there, whichever device is current."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from vllm_ir_testkit.checks import gpu
from vllm_ir_testkit.checks.values import disagreement
from vllm_ir_testkit.notes import in_words

if TYPE_CHECKING:
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "two_devices"
SENTENCE: Final = "tensors of another device than the current one are computed where they are"


def check(subject: Subject, notes: Notes) -> None:
    """Call with tensors of the second device while the first is current, and compare with native."""
    if not gpu.ready(subject, notes, devices=2):
        return
    second = torch.device("cuda", 1)
    for case in subject.plain():
        notes.tried()
        with torch.cuda.device(0):
            args = case.build(subject.op, second)
            try:
                outputs = subject.run(args)
                torch.cuda.synchronize(second)
            except Exception as error:  # noqa: BLE001 - any exception is the fault that is looked for
                notes.fault(case, f"raised {in_words(error)}")
                continue
        strays = [i for i, x in enumerate(outputs) if x.device != second]
        if strays:
            notes.fault(case, f"result {strays[0]} is on {outputs[strays[0]].device}, the inputs are on {second}")
            continue
        what = disagreement(subject, case, outputs, subject.native(case.build(subject.op, second)), {})
        if what is not None:
            notes.fault(case, what)
