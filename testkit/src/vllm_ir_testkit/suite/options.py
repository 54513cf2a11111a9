"""The names of the options of a conformance run; `plugin` adds them to pytest, `session` reads them."""

from __future__ import annotations

from typing import Final

PROVIDER: Final = "--vllm-ir-provider"
"""The option that names the provider to judge."""

OPS: Final = "--vllm-ir-op"
KNOWN: Final = "--vllm-ir-known"
REPORT: Final = "--vllm-ir-report"
