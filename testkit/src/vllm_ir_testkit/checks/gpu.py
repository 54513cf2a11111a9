"""What only a CUDA device can show: another stream, a graph capture, a second device.

Each is a check of its own; this room holds what they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NEEDS_CUDA: Final = "needs a CUDA device"


def ready(subject: Subject, notes: Notes, devices: int = 1) -> bool:
    """Tell whether there are enough CUDA devices, and write down the reason if not."""
    if subject.device.type != "cuda" or not torch.cuda.is_available():
        notes.skip(NEEDS_CUDA)
        return False
    if torch.cuda.device_count() < devices:
        notes.skip(f"needs {devices} CUDA devices, there is {torch.cuda.device_count()}")
        return False
    return True
