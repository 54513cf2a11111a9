"""What workers count, for whoever scrapes vLLM's `/metrics`."""

from __future__ import annotations

import functools
import os
from typing import Final

from vllm_ir import prometheus
from vllm_ir.errors import PrometheusMissing
from vllm_ir.log import logger

FOLDER: Final = prometheus.FOLDER
"""Variable with the folder through which the server sees what its workers count."""


@functools.cache
def export() -> None:
    """Let Prometheus see what this worker counts, the first time.

    vLLM answers scrapes in another process than the one that runs the model, and makes the folder of the variable only
    where several of them answer.

    Raises:
        MalformedVariable: PROMETHEUS_MULTIPROC_DIR names no folder.
    """
    try:
        prometheus.register_collector()
    except PrometheusMissing as missing:
        logger.warning("%s", missing)
        return
    if not os.environ.get(FOLDER):
        logger.info("Counts of this worker are seen in its own process; %s=FOLDER shows them in /metrics.", FOLDER)
