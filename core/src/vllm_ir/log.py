"""The one logger of vllm-ir; hosts configure it like any other."""

from __future__ import annotations

import logging
from typing import Final

logger: Final = logging.getLogger("vllm_ir")
