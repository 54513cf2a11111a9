"""The CPU's name from procfs, with the machine's architecture where that does not tell."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from vllm_ir.platforms.platform import Device

if TYPE_CHECKING:
    from pathlib import Path


def read_cpu(procfs: Path) -> Device:
    """Return the CPU as one device: all its cores are one torch device.

    Args:
        procfs: root of procfs.
    """
    try:
        text = (procfs / "cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Device(f"{_machine()} CPU")
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and value.strip():
            facts.setdefault(key.strip().lower(), value.strip())
    name = facts.get("model name") or facts.get("cpu model") or facts.get("hardware")
    if name is None and "cpu part" in facts:  # Arm gives numbers, not names
        name = f"Arm implementer {facts.get('cpu implementer', '?')} part {facts['cpu part']}"
    return Device(name or f"{_machine()} CPU")


def _machine() -> str:
    """Return the architecture, such as "x86_64"."""
    return os.uname().machine if hasattr(os, "uname") else sys.platform
