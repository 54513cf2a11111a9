"""Products of 32 bits that grow with the number of blocks, in the code of a program or of one that was changed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_ir_provider_triton import compiling

if TYPE_CHECKING:
    from types import ModuleType


def narrow_products(ttir: str) -> list[str]:
    """Return the products of 32 bits in a program that grow with the number of its blocks, line by line.

    What grows is followed from the block's number through the code; a remainder grows no more, nor does what is loaded.
    """
    growing: set[str] = set()
    found = []
    for line in ttir.splitlines():
        made = re.match(r" *(%\w+)(?::\d+)? = \"?([\w.]+)", line)
        if made is None:
            continue
        name, operation = made.groups()
        used = set(re.findall(r"%\w+", line.split("=", 1)[1].partition(" loc(")[0]))
        if operation == "tt.get_program_id":
            growing.add(name)
        elif used & growing and operation not in ("arith.remsi", "arith.cmpi", "tt.load"):
            growing.add(name)
            kind = line.partition(" loc(")[0]
            if operation == "arith.muli" and re.search(r"(: |x)i32>?$", kind.strip()):
                found.append(kind.strip())
    return found


def changed(file: str, old: str, new: str, folder: Path) -> Any:
    """Return a module of programs with one place of its source changed, which it has once."""
    text = (Path(compiling.__file__).parent / "programs" / file).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (folder / file).write_text(text.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"narrow_{file.removesuffix('.py')}", folder / file)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
