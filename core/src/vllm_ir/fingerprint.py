"""Digests by which a cache knows that something is another kernel: each is worked out once a process.

They hold what runs, never where it lies: the same wheel has the same digests in every environment. What is compiled
with them is left to `compile`, reading files to `package_files`, reading functions to `code_digest`.
"""

from __future__ import annotations

import hashlib
import json
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from vllm_ir.code_digest import digest_code
from vllm_ir.memo import Memo
from vllm_ir.package_files import Contents, read_contents
from vllm_ir.plugins.walk import normalise

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.composition import Composition
    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.op import IrOp
    from vllm_ir.platforms import Platform

_IMPLEMENTATIONS: Final[Memo[IrOpImpl, str]] = Memo()
_NATIVES: Final[Memo[tuple[Any, ...], str]] = Memo()
_DISTRIBUTIONS: Final[Memo[str, Contents]] = Memo()
_SOURCES: Final[Memo[Any, str]] = Memo(WeakKeyDictionary())


def implementation_digest(impl: IrOpImpl) -> str:
    """Return the digest of an implementation, in hex.

    It changes with the op, the provider, the flags, the function, its functional form, the predicate, their closures,
    and with the version and any file of the distribution that brought it. Of an implementation that a program
    registered by itself, or whose package is not among the distribution's files, it changes with every function of the
    program's own that the function reaches.

    Args:
        impl: a registered implementation, or one that is only declared.
    """
    return _IMPLEMENTATIONS.get(impl, lambda: _implementation(impl))


def native_digest(op: IrOp) -> str:
    """Return the digest of an op's meaning, in hex: its schema, its activations, its native function and its fake.

    Args:
        op: the op.
    """
    _, fake, _ = op.save()
    return _NATIVES.get((op, op.declaration, fake), lambda: _native(op, fake))


def distribution_digest(name: str) -> str:
    """Return the digest of an installed distribution, in hex: its version and the name and bytes of all its files.

    The files are those of its import packages, wherever Python would import them from, editable installs and archives
    included; bytecode does not take part. Of a distribution that is not installed it is the digest of the name.

    Args:
        name: of the distribution, in any spelling that installers accept.
    """
    return _contents(name).digest


def source_digest(source: Callable[..., Any] | type) -> str:
    """Return the digest of what a function or a class does, in hex.

    It changes with the bytecode, constants, defaults and closure of the function, or with the methods and attributes
    of the class and its bases, and with what these reach of the same program; a change of comments does not matter.
    Of anything that was installed, name and version stand for what it does.

    Args:
        source: a function of any kind, a class, or an object that can be called.
    """
    if isinstance(source, (FunctionType, type)):
        return _SOURCES.get(source, lambda: digest_code(source, reach=True))
    return digest_code(source, reach=True)


def device_architecture(platform: Platform) -> str:
    """Return the digest of what kernels on a machine are made for, in hex; how many devices it has does not matter.

    Args:
        platform: the machine.
    """
    devices = {json.dumps(device.describe(), sort_keys=True) for device in platform.devices}
    kind = type(platform)
    return _digest(
        "architecture", kind.__module__, kind.__qualname__, platform.name, platform.device_type, sorted(devices)
    )


def forget() -> None:
    """Forget every digest, for a test that changes what a process finds; a program has no use for it."""
    for memo in (_IMPLEMENTATIONS, _NATIVES, _DISTRIBUTIONS, _SOURCES):
        memo.forget()


def _contents(name: str) -> Contents:
    """Return what a distribution consists of."""
    key = normalise(name)
    return _DISTRIBUTIONS.get(key, lambda: read_contents(key))


def _implementation(impl: IrOpImpl) -> str:
    """Work out the digest of an implementation."""
    files: frozenset[str] = frozenset()
    brought = ""
    if impl.distribution is not None:
        contents = _contents(impl.distribution)
        files, brought = contents.packages, contents.digest
    functions = (impl.impl_fn, impl.functional, impl.predicate)
    if impl.composition is not None:
        # Who runs a part takes part by the part's own order.
        functions = (impl.composition.meaning, None, impl.predicate)
    codes = [
        None if function is None else digest_code(function, reach=_package(function) not in files)
        for function in functions
    ]
    devices = None if impl.devices is None else sorted(impl.devices)
    flags = [bool(impl.supported), impl.inplace, impl.batch_invariant, devices, list(impl.activation_indices)]
    parts = _parts(impl.composition)
    return _digest("implementation", impl.op_name, impl.provider, flags, codes, parts, brought)


def _native(op: IrOp, fake: Callable[..., Any]) -> str:
    """Work out the digest of an op's meaning."""
    declared = op.declaration
    flags = [list(declared.activations), declared.allow_inplace, declared.batch_invariant]
    composed = declared.composition
    # A native function that was made over parts is told by the meaning that it was made of.
    made = composed is not None and vars(declared.native).get("__wrapped__") is composed.meaning
    functions = [*([] if made else [declared.native]), *([] if composed is None else [composed.meaning])]
    codes = [source_digest(function) for function in functions]
    faked = "" if fake is declared.native else source_digest(fake)
    parts = _parts(composed)
    return _digest("native", declared.name, declared.schema, declared.inplace_schema, flags, codes, parts, faked)


def _parts(composition: Composition | None) -> list[tuple[str, str]]:
    """Return the parts that a meaning calls, each with the digest of its own meaning."""
    parts = () if composition is None else cast("tuple[IrOp, ...]", composition.parts)
    return [(part.name, native_digest(part)) for part in parts]


def _package(function: Callable[..., Any]) -> str:
    """Return the top-level package of the module that a function says it is defined in."""
    module = getattr(function, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _digest(*facts: Any) -> str:
    """Return the digest of facts that JSON can hold."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
