"""What `vllm-ir run` shows: the answer, what it took, and which kernels ran or stand in compiled graphs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir.cli import output

if TYPE_CHECKING:
    from vllm_ir_host_transformers.answering import Answer
    from vllm_ir_host_transformers.compiling import Compilation
    from vllm_ir_host_transformers.findings import Replacement
    from vllm_ir_host_transformers.measuring import Usage
    from vllm_ir_host_transformers.models.loading import Loaded


@dataclass(frozen=True, slots=True)
class Story:
    """All there is to tell.

    Attributes:
        loaded: the model.
        prompt: what it was asked.
        said: its answer.
        usage: what its ops did.
        replacement: what runs on them.
        compilation: what became of it when it was compiled; None when it was not.
        notes: sentences.
        cache: "dynamic" or "static".
    """

    loaded: Loaded
    prompt: str
    said: Answer
    usage: Usage
    replacement: Replacement
    compilation: Compilation | None
    notes: tuple[str, ...]
    cache: str = "dynamic"


def write(piece: str) -> None:
    """Show a piece of the answer at once."""
    sys.stdout.write(piece)
    sys.stdout.flush()


def ignore(piece: str) -> None:
    """Show nothing."""


def show(story: Story) -> None:
    """Print what it took and what ran, below the answer."""
    said, loaded = story.said, story.loaded
    write("\n\n")
    output.print_text(
        f"{len(said.token_ids)} tokens in {said.seconds:.2f} s: {said.tokens_per_second:.1f} tokens per second"
        f" (the first after {said.first_token_seconds:.2f} s); {loaded.name}, {loaded.dtype}, {loaded.device}"
        f"{', static cache' if story.cache == 'static' else ''}"
    )
    if story.compilation is not None:
        output.print_text(compile_sentence(story.compilation))
    write("\n")
    if story.compilation is None:
        _show_calls(story.usage)
        refusals = [(op.op, *refusal) for op in story.usage.ops.values() for refusal in op.refusals]
    else:
        _show_places(story.compilation)
        refusals = [refusal for graph in story.compilation.graphs for refusal in graph.record.refusals]
    # What the user asked for, or was told above, needs no reason.
    left = [line for line in story.replacement.lines_left() if not line.endswith("fuse_residual is off")]
    if story.notes or refusals or left:
        write("\n")
    for name, provider, reason, count in refusals:
        output.print_note(name, f"{provider} refused {count} calls: {reason}")
    for note in story.notes:
        output.print_text(f"  {note}", indent=4)
    for line in left:
        output.print_text(f"  {line}", indent=4)


def compile_sentence(compilation: Compilation) -> str:
    """Return how long compiling took, and how much of it a cache saved."""
    graphs, cached = len(compilation.graphs), compilation.cached
    where = {0: "", graphs: ", all from the cache"}.get(cached, f", {cached} of them from the cache")
    return f"compiled before that in {compilation.seconds:.1f} s: {graphs} graphs{where}; roundings as in eager"


def _show_calls(usage: Usage) -> None:
    """Print a row for every op and provider that ran."""
    from vllm_ir_host_transformers.measuring import per_pass

    rows = []
    for op in usage.ops.values():
        sources = dict(op.priority)
        for provider, count in op.calls.items() or {"not called": 0}.items():
            cells = (op.op, provider, str(count), str(per_pass(count, usage.forward_passes)), sources.get(provider, ""))
            rows.append([(cell, output.PLAIN) for cell in cells])
    output.print_table(("op", "provider", "calls", "per pass", "order set by"), rows)


def _show_places(compilation: Compilation) -> None:
    """Print a row for every graph, op and provider that was selected in it."""
    from vllm_ir_host_transformers.compiling import orders

    sources = orders({op for graph in compilation.graphs for op in graph.places})
    rows = []
    for graph in compilation.graphs:
        for op, counts in graph.places.items():
            for provider, count in counts.items():
                name = f"{graph.record.name} {graph.stage}"
                cells = (name, op, provider, str(count), dict(sources[op]).get(provider, ""))
                rows.append([(cell, output.PLAIN) for cell in cells])
    output.print_table(("graph", "op", "provider", "places", "order set by"), rows)


def emit(story: Story) -> None:
    """Print everything as one JSON object."""
    from vllm_ir_host_transformers import compiling, measuring

    said, loaded, replacement = story.said, story.loaded, story.replacement
    content: dict[str, Any] = {
        "model": loaded.name,
        "dtype": loaded.dtype,
        "device": str(loaded.device),
        "cache": story.cache,
        "prompt": story.prompt,
        "answer": said.text,
        "tokens": len(said.token_ids),
        "token_ids": list(said.token_ids),
        "seconds": round(said.seconds, 4),
        "first_token_seconds": round(said.first_token_seconds, 4),
        "tokens_per_second": round(said.tokens_per_second, 2),
        "forward_passes": said.forward_passes,
        "norms": story.usage.norms,
        "ops": measuring.as_json(story.usage),
        "notes": list(story.notes),
        "replaced": [
            {"name": p.name, "kind": p.kind, "op": p.op, "module": p.module, "note": p.note}
            for p in replacement.replaced
        ],
        "left": [{"name": p.name, "kind": p.kind, "module": p.module, "reason": p.reason} for p in replacement.left],
    }
    if story.compilation is not None:
        content["compile"] = compiling.as_json(story.compilation)
    output.emit_json(content)
