"""Whether the kernels can come to be on this machine, judged from what is installed, and the sentence if not.

The manifest has decided on platform, architecture and CuPy's version before. No device is touched.
"""

from __future__ import annotations

from importlib import metadata
from typing import Final

from vllm_ir import Unsupported

from vllm_ir_provider_vllm_c import compiling, cubins

CUPY: Final = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
"""Distributions that bring a module `cupy`; two of them write over each other's files."""


def installed(names: tuple[str, ...] = CUPY) -> tuple[str, ...]:
    """Return which of several distributions are installed."""
    found = []
    for name in names:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        found.append(name)
    return tuple(found)


def supported() -> bool | Unsupported:
    """Tell whether there is one CuPy, and either a compiler with its headers or cubins built ahead of time."""
    several = installed()
    if len(several) > 1:
        return Unsupported(
            f"{' and '.join(several)} are both installed and write over each other's files: uninstall all of them,"
            " then install the one for this driver"
        )
    closed = cubins.unreadable(cubins.BUILT)
    if closed is None and any(cubins.BUILT.glob("*.cubin")):
        return True
    try:
        compiling.include_folders()
    except ImportError as error:
        if closed is not None:
            return Unsupported(
                f"{closed} was built ahead of time and cannot be read (chmod a+rX {closed}), and {error}"
            )
        return Unsupported(
            f"{error}: pip install 'vllm-ir-provider-vllm-c[cuda13]' ([cuda12] with CuPy for CUDA 12),"
            " or install a wheel with cubins built ahead of time"
        )
    return True
