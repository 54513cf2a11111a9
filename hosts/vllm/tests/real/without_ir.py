"""Make a vLLM that has no `vllm.ir`, as 0.34 is announced: `python without_ir.py FOLDER`, then FOLDER on PYTHONPATH.

It is the installed one, file by file as links, less that package; the files that import it when a model runs are
copied without what they take from it. Norms of vLLM's own raise there, so that a model runs on ours or not at all.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

GONE: Final = ("ir", "__pycache__")

DEFAULT: Final = """
        vllm_config.kernel_config.ir_op_priority.set_default()
        vllm.ir.set_default_torch_wrap(
            vllm_config.compilation_config.ir_enable_torch_wrap
        )
"""

HASH: Final = """
        from vllm.ir.op import IrOp
        from vllm.platforms import current_platform

        current_platform.import_ir_kernels()

        assert "_impls" not in factors
        factors["_impls"] = {
            name: {
                provider: IrOp.registry[name].impls[provider].uuid() for provider in p
            }
            for name, p in asdict(self).items()  # type: ignore[call-overload]
        }
"""

CHANGES: Final = {
    "model_executor/layers/layernorm.py": {
        "import vllm.kernels  # noqa: F401\n": "",
        "from vllm import envs, ir\n": "from vllm import envs\n",
    },
    "model_executor/layers/activation.py": {"from vllm import ir\n": ""},
    "kernels/__init__.py": {"from . import aiter_ops, oink_ops, triton, vllm_c\n": ""},
    "kernels/triton/__init__.py": {"from . import activation\n": ""},
    "v1/worker/worker_base.py": {"import vllm.ir\n": "", DEFAULT: ""},
    "config/kernel.py": {HASH: ""},
}
"""By file, what is replaced by what."""


def link(source: Path, target: Path, changed: frozenset[Path]) -> None:
    """Make a folder of links, with folders of its own along the way to every file that is changed."""
    target.mkdir(parents=True)
    for each in source.iterdir():
        if any(each in path.parents for path in changed):
            link(each, target / each.name, changed)
        elif each not in changed and each.name not in GONE:
            (target / each.name).symlink_to(each)


def make(folder: Path) -> None:
    """Make the package in a folder.

    Raises:
        ValueError: the installed vLLM is another one than this was written for.
    """
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("no vLLM is installed")
    installed = Path(next(iter(spec.submodule_search_locations)))
    link(installed, folder / "vllm", frozenset(installed / name for name in CHANGES))
    for name, changes in CHANGES.items():
        text = (installed / name).read_text(encoding="utf-8")
        for before, after in changes.items():
            if before not in text:
                raise ValueError(f"{name} of this vLLM has no {before!r}")
            text = text.replace(before, after)
        (folder / "vllm" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
