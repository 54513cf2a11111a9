"""Graph passes as each version of torch takes them: which class they are of, and how several share one place.

Torch 2.11 tells no pass what its graph is for and puts the pass before AOTAutograd, as an object, into its cache key;
2.11 and 2.12 take one pass a place, and what 2.12 puts into its key beside a pass cannot be there. What follows from
that ends here: see docs/torch_versions.md.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_inference: Final[ContextVar[bool]] = ContextVar("vllm_ir.compile.inference", default=False)
"""Whether the graph at hand is one for inference; not known is no, since a graph for training must keep its inputs."""


def plain_pass_base() -> type:
    """Return the class of a graph pass that has a cache key: a subclass has `uuid()` and `__call__(graph)`."""
    return _keyed(_classes().CustomGraphPass)


def pass_base() -> type:
    """Return the class of a graph pass that is also told whether the graph is one for inference.

    A subclass has `uuid()` and `__call__(graph, is_inference)`.
    """
    base = _aware()
    return _told(plain_pass_base()) if base is None else _keyed(base)


def chained(*passes: Any) -> Any:
    """Return passes as one value of Inductor's configuration; None where there is none.

    Args:
        passes: in the order in which they run; None among them, and tuples of them, are what users had set.
    """
    flat: list[Any] = []
    for each in passes:
        flat.extend(each if isinstance(each, (list, tuple)) else () if each is None else (each,))
    if not flat:
        return None
    if hasattr(_classes(), "get_custom_graph_passes"):
        return tuple(flat)
    return flat[0] if len(flat) == 1 else _chain(tuple(flat))


class Decompositions:
    """What is taken apart while tracing, as Inductor asks for it from torch 2.12 on, and as its cache key sees it.

    Torch 2.12 asks a function that cannot be part of a key, so that its cache is bypassed; from 2.13 on the key holds
    the whole table, of which not everything has a stable form. Nothing is lost without it: the table follows from the
    configuration and from the plan, which are in the key themselves.

    Args:
        table: by operation.
    """

    def __init__(self, table: Mapping[Any, Callable[..., Any]]) -> None:
        self._table = dict(table)

    def __call__(self) -> dict[Any, Callable[..., Any]]:
        """Return the table."""
        return self._table

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Return what stands for it in a key."""
        return str, ("vllm_ir",)


@contextlib.contextmanager
def compiling(*, is_inference: bool) -> Iterator[None]:
    """Let the passes that run inside know what their graph is for, where torch does not tell them."""
    token = _inference.set(is_inference)
    try:
        yield
    finally:
        _inference.reset(token)


def _classes() -> Any:
    """Return torch's module of pass classes."""
    from torch._inductor import custom_graph_pass

    return custom_graph_pass


def _aware() -> Any:
    """Return torch's class of a pass that is told what the graph is for, or None in torch 2.11."""
    return getattr(_classes(), "CustomInferenceAwareGraphPass", None)


def _keyed(base: Any) -> type:
    """Return a class of passes that are pickled as their key: in torch 2.11 one is pickled with the configuration."""

    class KeyedPass(base):  # type: ignore[misc]
        """A pass of ours."""

        def __reduce__(self) -> tuple[Any, ...]:
            """Return the key, in the place of an object that no other process could read."""
            return str, (repr(self.uuid()),)

    return KeyedPass


def _told(base: Any) -> type:
    """Return a class of passes that learn from this module, and not from torch, what the graph is for."""

    class ToldPass(base):  # type: ignore[misc]
        """A pass of ours."""

        def __init_subclass__(cls, **kwargs: Any) -> None:
            """Give a subclass the call that torch makes."""
            super().__init_subclass__(**kwargs)
            own: Callable[..., None] = vars(cls)["__call__"]

            def call(self: Any, graph: Any) -> None:
                """Run the pass."""
                own(self, graph, is_inference=_inference.get())

            cls.__call__ = call

    return ToldPass


def _chain(passes: Sequence[Any]) -> Any:
    """Return one pass that runs several; it has a key if each of them has one, as torch asks of each."""
    plain, aware = _classes().CustomGraphPass, _aware()
    tells = [aware is not None and isinstance(each, aware) for each in passes]
    base: Any = aware if any(tells) else plain

    def key(each: Any) -> Any:
        """Return the key of one, or None."""
        return each.uuid() if isinstance(each, plain) else None

    class Chain(base):  # type: ignore[misc]
        """Several passes in the place of one."""

        def __call__(self, graph: Any, is_inference: bool = False) -> None:
            """Run each on the graph."""
            for each, told in zip(passes, tells, strict=True):
                each(graph, is_inference) if told else each(graph)

        def uuid(self) -> Any:
            """Return all keys, or None where one is missing, so that torch does without its cache."""
            keys = tuple(key(each) for each in passes)
            return keys if all(keys) else None

        def __reduce__(self) -> tuple[Any, ...]:
            """Return the keys, and what has none as it is."""
            return tuple, (tuple(each if key(each) is None else repr(key(each)) for each in passes),)

    return Chain()
