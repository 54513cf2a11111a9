"""What the installed torch was built for, from its `version.py` read as text: importing torch takes a second."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LINE: Final = re.compile(r"""^(__version__|cuda|hip|xpu)\s*(?::[^=\n]*)?=\s*['"]([^'"\n]*)['"]""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """Versions of torch and of the one toolkit it was built with.

    Args:
        version: of torch, such as "2.13.0+cpu"; None where torch is not installed.
        cuda: of CUDA, or None.
        hip: of ROCm's HIP, or None.
        xpu: of Intel's toolkit, or None.
    """

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None

    def __str__(self) -> str:
        if self.version is None:
            return "not installed"
        for toolkit, version in (("CUDA", self.cuda), ("HIP", self.hip), ("XPU", self.xpu)):
            if version:
                return f"{self.version} ({toolkit} {version})"
        return self.version


def find_version_file() -> Path | None:
    """Return the path of torch's `version.py`, found without importing torch; None where there is no torch."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).with_name("version.py")


def read_torch_build(version_file: Path | None) -> TorchBuild:
    """Return what a `version.py` says; nothing known where the file is missing or says nothing."""
    if version_file is None:
        return TorchBuild()
    try:
        text = version_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return TorchBuild()
    found = dict(_LINE.findall(text))
    return TorchBuild(
        version=found.get("__version__") or "unknown",
        cuda=found.get("cuda") or None,
        hip=found.get("hip") or None,
        xpu=found.get("xpu") or None,
    )
