"""Facts of this machine, or of one that is named: what is there, never what is best.

Nothing in this room imports torch or starts a GPU runtime; it reads text files and asks NVML, so a verb that only
lists things stays fast and a process may still fork afterwards.
"""

from __future__ import annotations

from vllm_ir.platforms.detection import Sources, detect
from vllm_ir.platforms.named import NamedPlatform, named_platform, platform_name
from vllm_ir.platforms.platform import BUILT_IN, Device, Platform

__all__ = ["BUILT_IN", "Device", "NamedPlatform", "Platform", "Sources", "detect", "named_platform", "platform_name"]
