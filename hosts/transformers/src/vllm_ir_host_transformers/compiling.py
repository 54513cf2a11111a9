"""A model that generates through compiled graphs: its forward compiled and given back, and every graph kept in sight.

The cache is the one that eager generation would use, growing or static, and attention runs on the same shapes, so that
it has the same bits in both; sizes are open, so that one graph serves every prompt and one every token behind it.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
import vllm_ir
from vllm_ir import runtime

from vllm_ir_host_transformers.attending import as_in_eager
from vllm_ir_host_transformers.instance import model_of
from vllm_ir_host_transformers.measuring import norms_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vllm_ir.graphs import GraphRecord

    from vllm_ir_host_transformers.measuring import Usage

CACHES: Final = ("cache", "past_key_values")
"""The argument that holds the cache, by the version of Transformers, newest first."""

TOKENS: Final = 3
"""After how many tokens everything is compiled: a prompt, a token behind it, and one behind a token."""

ASKED: Final = "get_compiled_call"
"""What `generate` asks for the forward that Transformers compiles for a static cache."""

MISSING: Final = object()
"""What stands for an attribute that an instance does not have."""

Stage = Literal["prompt", "token"]


@dataclass(frozen=True, slots=True)
class Graph:
    """One compiled graph of a model.

    Attributes:
        stage: whether a whole prompt first needed it, or a single token.
        record: what became of it.
    """

    stage: Stage
    record: GraphRecord

    @property
    def places(self) -> dict[str, dict[str, int]]:
        """By op and provider, how many calls in this graph."""
        found: dict[str, dict[str, int]] = {}
        for op, nodes in self.record.selected.items():
            counts = found.setdefault(op, {})
            for provider in nodes.values():
                counts[provider] = counts.get(provider, 0) + 1
        return found


@contextlib.contextmanager
def compiled(model: Any, *, exact: bool = True, **options: Any) -> Iterator[list[Graph]]:
    """Let a model run compiled while open; give the list of its graphs, which grows as they are made.

    Which cache `generate` uses is said where it always is, by `cache_implementation`. Transformers compiles by itself
    where it finds a static cache on an accelerator; while open it does not.

    Args:
        model: a model of Transformers, or a pipeline that holds one, on IR ops already.
        exact: keep the roundings of eager bfloat16 and float16.
        options: more for `vllm_ir.compile`.

    Raises:
        NotAModel: what is given is no model and holds none.
    """
    model = model_of(model)
    eager: Callable[..., Any] = model.forward
    graphs: list[Graph] = []
    forward: Callable[..., Any] = vllm_ir.compile(eager, exact=exact, dynamic=True, **options)

    @functools.wraps(eager)
    def run(*args: Any, **kwargs: Any) -> Any:
        """Run the model and see which graphs that took."""
        known = set(map(id, runtime.current().graphs.all()))
        result = forward(*args, **_unmasked(kwargs))
        ids = kwargs.get("input_ids")
        stage: Stage = "token" if ids is not None and ids.shape[-1] == 1 else "prompt"
        graphs.extend(Graph(stage, each) for each in runtime.current().graphs.all() if id(each) not in known)
        if stage == "prompt":
            _settle(next((kwargs[name] for name in CACHES if name in kwargs), None))
        return result

    with as_in_eager(model), _instead(model, "forward", run), _instead(model, ASKED, lambda *_, **__: model.__call__):
        yield graphs


@contextlib.contextmanager
def _instead(model: Any, name: str, value: Any) -> Iterator[None]:
    """Put an attribute on an instance, over that of its class or over another, while open."""
    had = model.__dict__.get(name, MISSING)
    model.__dict__[name] = value
    try:
        yield
    finally:
        if had is MISSING:
            del model.__dict__[name]
        else:
            model.__dict__[name] = had


def _unmasked(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Leave a mask out that hides nothing, as eager attention does when it looks into it, which a graph cannot.

    With a mask attention takes another kernel, whose sums round otherwise: in bfloat16 answers change.
    """
    mask = kwargs.get("attention_mask")
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and bool(mask.all()):  # noqa: PLR2004 - batch and tokens
        return {**kwargs, "attention_mask": None}
    return kwargs


def _settle(cache: Any) -> None:
    """Lay what a prompt left in the cache out as tokens will, or the first token has a graph that no other can use."""
    for layer in getattr(cache, "layers", ()):
        for name in ("keys", "values"):
            held = getattr(layer, name, None)
            if isinstance(held, torch.Tensor) and not held.is_contiguous():
                setattr(layer, name, held.contiguous())


def orders(ops: Iterable[str]) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return, by op, the providers in the order that graphs are compiled by, each with who put it there."""
    found = {}
    for op in ops:
        verdicts = vllm_ir.explain(op, compiling=True).verdicts
        found[op] = tuple((verdict.provider, verdict.layer) for verdict in verdicts if verdict.layer)
    return found


@dataclass(frozen=True, slots=True)
class Compilation:
    """What became of a model that was compiled and then answered.

    Attributes:
        graphs: in the order in which they were needed.
        seconds: what it took before the answer, a few forward passes included.
        late: how many of the graphs were made while it answered.
    """

    graphs: tuple[Graph, ...]
    seconds: float
    late: int = 0

    @property
    def cached(self) -> int:
        """How many graphs came from a cache."""
        return sum(graph.record.cached for graph in self.graphs)

    def norm_sentence(self) -> str | None:
        """Return why `rms_norm` has fewer places than there are norms, or None when it has not."""
        if not self.graphs:
            return None
        places = self.graphs[0].places
        ours, theirs = (sum(places.get(op, {}).values()) for op in ("rms_norm", "fused_add_rms_norm"))
        return norms_apart(ours, theirs)

    def unmet(self, usage: Usage) -> tuple[str, ...]:
        """Return a sentence for every provider that a user named first for an op and that was selected nowhere."""
        sentences = []
        for op in usage.ops.values():
            counts = [graph.places[op.op] for graph in self.graphs if op.op in graph.places]
            first = op.named[0] if op.named else None
            if first is not None and counts and not any(first in each for each in counts):
                total = sum(sum(each.values()) for each in counts)
                sentences.append(f"{first} was named for {op.op} and was selected in none of its {total} places")
        return tuple(sentences)


def as_json(compilation: Compilation) -> dict[str, Any]:
    """Return what became of the model as JSON values; calls of compiled graphs are not counted, so there are none."""
    ops = sorted({op for graph in compilation.graphs for op in graph.places})
    return {
        "exact": True,
        "seconds": round(compilation.seconds, 4),
        "graphs_while_answering": compilation.late,
        "priority": {
            op: [{"provider": provider, "layer": layer} for provider, layer in order]
            for op, order in orders(ops).items()
        },
        "graphs": [_graph_as_json(graph) for graph in compilation.graphs],
    }


def _graph_as_json(graph: Graph) -> dict[str, Any]:
    """Return what became of one graph as JSON values."""
    record = graph.record
    refusals = [{"op": op, "provider": who, "reason": why, "count": count} for op, who, why, count in record.refusals]
    passes = [{"name": one.name, "changes": one.changes, "seconds": round(one.seconds, 4)} for one in record.passes]
    return {
        "name": record.name,
        "stage": graph.stage,
        "cached": record.cached,
        "selected": {op: dict(nodes) for op, nodes in record.selected.items()},
        "refusals": refusals,
        "copies": record.copies,
        "passes": passes,
    }
