"""What a function or class does, as one digest: its code, constants, closure, and what it reaches of its own program.

It reads the loaded bytecode, not the text: a text may have been edited since, may be missing, and tells nothing of a
closure. What a distribution brought is read from its files instead, by `package_files`.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
from collections import deque
from typing import Any, Final

from vllm_ir import bytecode
from vllm_ir.opaque import attributes, facts, wrapped
from vllm_ir.origins import Origins
from vllm_ir.package_files import hash_file

_UNSTABLE: Final = frozenset(
    {
        *("__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__"),
        *("__conditional_annotations__", "__dict__", "__firstlineno__", "__module__", "__static_attributes__"),
        *("__weakref__", "_abc_impl"),
    }
)
"""What a class holds that says nothing of what it does, or comes in no fixed order."""

_DEPTH: Final = 3
"""How many objects inside one another are looked into; of one further in, only the type takes part."""

_HEAP: Final = 1 << 9
"""Flag of a class that was made by a program and not by the interpreter."""

_WORDS: Final = (str, bytes, int, float, complex)


def digest_code(subject: Any, *, reach: bool) -> str:
    """Return the sha256, in hex, of what a function, class or callable object does.

    Args:
        subject: it.
        reach: whether to follow functions, classes and modules that the code names; without it, only constants.
    """
    return _Walk(_module(subject), reach=reach).run(subject)


def _module(subject: Any) -> str | None:
    """Return the name of the module that a callable is defined in, in spite of partials and methods around it."""
    while isinstance(subject, (functools.partial, types.MethodType)):
        subject = subject.func if isinstance(subject, functools.partial) else subject.__func__
    if not isinstance(subject, type) and not hasattr(subject, "__qualname__"):
        subject = type(subject)
    module = getattr(subject, "__module__", None)
    return module if isinstance(module, str) else None


class _Walk:
    """One reading: every object is read once, in the order in which it is met, and referred to by its number."""

    def __init__(self, root: str | None, *, reach: bool) -> None:
        self._hash = hashlib.sha256()
        self._origins = Origins(root)
        self._reach = reach
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []  # a number is by address, which must not be given away meanwhile
        self._waiting: deque[tuple[Any, int]] = deque()
        self._stored: dict[int, frozenset[str]] = {}

    def run(self, subject: Any) -> str:
        """Return the digest of a subject and all that it leads to."""
        self._value(subject, 0)
        while self._waiting:
            self._read(*self._waiting.popleft())
        return self._hash.hexdigest()

    def _put(self, *parts: str | bytes) -> None:
        """Add words and bytes."""
        self._hash.update(bytecode.join(part.encode() if isinstance(part, str) else part for part in parts))

    def _value(self, value: Any, depth: int) -> None:
        """Add a value: a constant at once, anything else by number, to be read later."""
        encoded = bytecode.constant(value, placed=False)
        if encoded is not None:
            self._put("constant", encoded)
            return
        number = self._numbers.setdefault(id(value), len(self._numbers))
        self._put("number", str(number))
        if number == len(self._kept):
            self._kept.append(value)
            self._waiting.append((value, depth))

    def _read(self, value: Any, depth: int) -> None:
        """Add what one object is."""
        if isinstance(value, types.FunctionType):
            self._function(value, depth)
        elif isinstance(value, types.MethodType):
            self._several("method", depth, value.__func__, value.__self__)
        elif isinstance(value, functools.partial):
            self._several("partial", depth, value.func, value.args, value.keywords)
        elif isinstance(value, (staticmethod, classmethod)):
            self._several(type(value).__name__, depth, value.__func__)
        elif isinstance(value, property):
            self._several("property", depth, value.fget, value.fset, value.fdel)
        elif isinstance(value, types.ModuleType):
            self._put("module", value.__name__, self._origins.version(value.__name__))
        elif isinstance(value, types.CodeType):
            self._put("code", bytecode.encode(value))
        elif isinstance(value, type):
            self._class(value, depth)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._compiled(value, depth)
        else:
            self._instance(value, depth)

    def _several(self, word: str, depth: int, *values: Any) -> None:
        """Add a word and some values."""
        self._put(word, str(len(values)))
        for value in values:
            self._value(value, depth)

    def _named(self, word: str, module: str | None, name: str) -> None:
        """Add something by its name and the version of its package."""
        self._put(word, module or "", name, self._origins.version(module))

    def _function(self, function: types.FunctionType, depth: int) -> None:
        """Add a function: if it is not the program's own, its name, but its closure all the same."""
        home = function.__globals__.get("__name__")
        own = self._origins.is_own(home)
        if own:
            self._put("function", bytecode.encode(function.__code__))
        else:
            self._named("function", home, function.__qualname__)
        self._several("defaults", depth, function.__defaults__, function.__kwdefaults__)
        rebound = bytecode.rebound(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._put("closure", name)
            if name not in rebound:
                try:
                    self._value(cell.cell_contents, depth)
                except ValueError:  # nothing is in it yet
                    self._put("empty")
        if own:
            self._globals(function, depth)

    def _globals(self, function: types.FunctionType, depth: int) -> None:
        """Add what a function reads from its module: constants always, the rest as far as this reading reaches."""
        scope = function.__globals__
        if id(scope) not in self._stored:
            self._stored[id(scope)] = bytecode.stored(scope)
        for name in bytecode.loaded(function.__code__):
            if name not in scope or name.startswith("__") or name in self._stored[id(scope)]:
                continue
            value = scope[name]
            if self._reach:
                self._put("global", name)
                self._value(value, depth)
                if isinstance(value, types.ModuleType) and self._origins.is_own(value.__name__):
                    self._attributes(value, function.__code__, depth)
            elif (encoded := bytecode.constant(value, placed=False)) is not None:
                self._put("global", name, encoded)

    def _attributes(self, module: types.ModuleType, code: types.CodeType, depth: int) -> None:
        """Add what code may read from a module of the program: every attribute of a name that the code uses."""
        names = sorted({name for inner in bytecode.nested(code) for name in inner.co_names})
        for name in names:
            if name in vars(module) and not name.startswith("__"):
                value = vars(module)[name]
                self._put("attribute", module.__name__, name)
                self._value(value, depth)
                inside = isinstance(value, types.ModuleType) and value.__name__.startswith(f"{module.__name__}.")
                if inside and self._origins.is_own(value.__name__):
                    self._attributes(value, code, depth)

    def _class(self, kind: type, depth: int) -> None:
        """Add a class: its bases and what its body defines, or only its name where it is not the program's own."""
        if not self._is_own_class(kind):
            self._named("class", kind.__module__, kind.__qualname__)
            return
        self._several("class", depth, kind.__qualname__, *kind.__bases__)
        for name, value in sorted(vars(kind).items()):
            if name not in _UNSTABLE and not isinstance(
                value, (types.MemberDescriptorType, types.GetSetDescriptorType)
            ):
                self._put("member", name)
                self._value(value, depth)

    def _is_own_class(self, kind: type) -> bool:
        """Tell whether a class is the program's own; one made by `exec` without a module says that it is built in."""
        made = kind.__module__ == "builtins" and bool(kind.__flags__ & _HEAP)
        return made or self._origins.is_own(kind.__module__)

    def _compiled(self, function: Any, depth: int) -> None:
        """Add a compiled function: its name, and the bytes of its module where that is the program's own."""
        owner = getattr(function, "__self__", None)
        module = function.__module__ if isinstance(getattr(function, "__module__", None), str) else None
        self._named("compiled", module, getattr(function, "__qualname__", function.__name__))
        file = getattr(sys.modules.get(module or ""), "__file__", None)
        if file and self._origins.is_own(module):
            self._put(hash_file(file))
        if owner is not None and not isinstance(owner, types.ModuleType):
            self._value(owner, depth)

    def _instance(self, value: Any, depth: int) -> None:
        """Add an object: its class, what it contains and, of the program's own, its attributes."""
        kind = type(value)
        self._several("instance", depth, kind)
        if isinstance(value, enum.Enum):
            self._put(value.name)
        elif isinstance(value, _WORDS):
            base = next(each for each in _WORDS if isinstance(value, each))
            self._put(base.__name__, base.__repr__(value))
        elif isinstance(value, dict):
            self._several("pairs", depth, *(part for pair in dict.items(value) for part in pair))
        elif isinstance(value, (set, frozenset)):
            members = [bytecode.constant(member, placed=False) for member in value]
            self._put("set", str(len(members)), *sorted(member for member in members if member is not None))
        elif isinstance(value, (list, tuple)):
            self._several("items", depth, *list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))
        else:
            self._put(facts(value))
        if depth < _DEPTH:
            for name, part in attributes(value) if self._is_own_class(kind) else wrapped(value):
                self._put("attribute", name)
                self._value(part, depth + 1)
