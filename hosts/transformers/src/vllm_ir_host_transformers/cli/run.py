"""`vllm-ir run`: a model answers on the kernels you choose, and then it is said which ran, how often, and why."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, Final, Literal

from vllm_ir.cli import output

from vllm_ir_host_transformers.cli.progress import TerminalSteps

if TYPE_CHECKING:
    from vllm_ir_host_transformers.answering import Answer
    from vllm_ir_host_transformers.findings import Replacement
    from vllm_ir_host_transformers.measuring import Usage
    from vllm_ir_host_transformers.models.loading import Loaded

PROMPT: Final = "What is the capital of France?"
DTYPES: Final = ("float32", "bfloat16", "float16", "auto")
FUSE: Final = ("auto", "exact", "always", "never")
When = Literal["auto", "exact", "always", "never"]


def run(arguments: list[str]) -> int:
    """Let a model answer and tell which kernels ran.

    Args:
        arguments: the command line behind the verb.

    Returns:
        0, or 1 when a provider that was named for an op ran none of its calls.

    Raises:
        ConfigurationError: the model or a provider cannot be had.
    """
    if "torch" not in sys.modules:
        # Threads that spin while they wait make a busy machine, or a container with half a core, up to ten times
        # slower; waiting asleep costs a few microseconds. OpenMP reads this when torch is imported.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from vllm_ir import IrOpPriorityConfig
    from vllm_ir.priority import Layer

    priorities, rest = IrOpPriorityConfig.from_arguments(arguments)
    options = _parser().parse_args(rest)
    steps = TerminalSteps()
    with steps.step("starting"):
        import vllm_ir.ops

        from vllm_ir_host_transformers.measuring import Meter, count_calls, norm_sentence, unmet

        count_calls()
        vllm_ir.load_providers()
        priorities.apply(layer=Layer.COMMAND_LINE)
    notes: list[str] = []
    fuse = _fusing(options.fuse_residual, notes)
    loaded = _load(options, steps)
    with steps.step("finding places for ops"):
        from vllm_ir_host_transformers.answering import answer
        from vllm_ir_host_transformers.replace import use_ir_ops

        replacement = use_ir_ops(loaded.model, fuse_residual=fuse)
        meter = Meter()
    show = _ignore if options.json else _write
    said = answer(loaded, options.prompt, max_new_tokens=options.max_new_tokens, show=show)
    usage = meter.read(replacement, said.forward_passes)
    sentence = norm_sentence(usage)
    if sentence is not None:
        notes.append(sentence)
    if not said.templated:
        notes.append("the model has no chat template, so the prompt went in as it is")
    missed = unmet(usage)
    notes += missed
    if options.json:
        _emit(loaded, options.prompt, said, usage, replacement, notes)
    else:
        _show(loaded, said, usage, replacement, notes)
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's own options."""
    parser = argparse.ArgumentParser(
        prog="vllm-ir run",
        description="Let a model answer on the kernels you choose, and see which ran.",
        epilog="--ir-op-priority.<op>=a,b puts providers first for an op; see `vllm-ir list` and `vllm-ir explain`.",
    )
    parser.add_argument("--model", metavar="PATH_OR_ID", help="a folder, a .gguf file or a hub id (a small chat model)")
    parser.add_argument("--prompt", default=PROMPT, metavar="TEXT", help=f"what to ask ({PROMPT!r})")
    parser.add_argument("--max-new-tokens", type=_positive, default=128, metavar="N", help="stop at the latest (128)")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (float32 on a CPU, else the checkpoint's)")
    parser.add_argument("--device", help="a torch device (the first accelerator, else cpu)")
    parser.add_argument(
        "--fuse-residual",
        choices=FUSE,
        default="auto",
        help="run residual add and norm as one op: where that changes no bit (exact), always, never; auto is exact,"
        " but never where a provider named for rms_norm lacks fused_add_rms_norm",
    )
    parser.add_argument(
        "--no-fuse-residual",
        dest="fuse_residual",
        action="store_const",
        const="never",
        help="put all norms on rms_norm",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, and nothing else")
    return parser


def _positive(text: str) -> int:
    """Return a whole number above zero."""
    value = int(text)
    if value < 1:
        message = f"{text} is no number of tokens; wanted 1 or more"
        raise argparse.ArgumentTypeError(message)
    return value


def _fusing(when: When, notes: list[str]) -> bool | Literal["always"]:
    """Return what to fuse; a provider named for `rms_norm` gets all norms if it cannot run the fused op."""
    if when != "auto":
        return {"exact": True, "always": "always", "never": False}[when]  # type: ignore[return-value]
    import vllm_ir

    report = vllm_ir.report().ops
    named = [entry.provider for entry in report["rms_norm"].priority if entry.layer.named]
    fused = vllm_ir.ops.fused_add_rms_norm
    if not named or named[0] in fused.impls or any(e.layer.named for e in report[fused.name].priority):
        return True
    notes.append(
        f"residual adds are not fused, because {named[0]} was named for rms_norm and has no fused_add_rms_norm"
        " (--fuse-residual=exact fuses them nevertheless)"
    )
    return False


def _load(options: argparse.Namespace, steps: TerminalSteps) -> Loaded:
    """Return the model that was asked for."""
    with steps.step("importing transformers"):
        from vllm_ir_host_transformers.models import loading

        with loading.quiet(offline=options.model is None):
            import transformers  # noqa: F401 - its import is what takes long
    source, name = options.model, ""
    if source is None:
        from vllm_ir import runtime

        from vllm_ir_host_transformers.models.default import SMOLLM2, default_model

        source, name = str(default_model(runtime.current().environment.cache, steps)), SMOLLM2.label
    with steps.step(f"loading {name or source}"):
        return loading.load(source, dtype=options.dtype, device=options.device, name=name)


def _write(piece: str) -> None:
    """Show a piece of the answer at once."""
    sys.stdout.write(piece)
    sys.stdout.flush()


def _ignore(piece: str) -> None:
    """Show nothing."""


def _show(loaded: Loaded, said: Answer, usage: Usage, replacement: Replacement, notes: list[str]) -> None:
    """Print what it took and what ran, below the answer."""
    from vllm_ir_host_transformers.measuring import per_pass

    _write("\n\n")
    output.print_text(
        f"{len(said.token_ids)} tokens in {said.seconds:.2f} s: {said.tokens_per_second:.1f} tokens per second"
        f" (the first after {said.first_token_seconds:.2f} s); {loaded.name}, {loaded.dtype}, {loaded.device}"
    )
    _write("\n")
    rows = []
    for op in usage.ops.values():
        sources = dict(op.priority)
        for provider, count in op.calls.items() or {"not called": 0}.items():
            cells = (op.op, provider, str(count), str(per_pass(count, usage.forward_passes)), sources.get(provider, ""))
            rows.append([(cell, output.PLAIN) for cell in cells])
    output.print_table(("op", "provider", "calls", "per pass", "order set by"), rows)
    refusals = [(op.op, *refusal) for op in usage.ops.values() for refusal in op.refusals]
    # What the user asked for, or was told above, needs no reason.
    left = [line for line in replacement.lines_left() if not line.endswith("fuse_residual is off")]
    if notes or refusals or left:
        _write("\n")
    for name, provider, reason, count in refusals:
        output.print_note(name, f"{provider} refused {count} calls: {reason}")
    for note in notes:
        output.print_text(f"  {note}", indent=4)
    for line in left:
        output.print_text(f"  {line}", indent=4)


def _emit(loaded: Loaded, prompt: str, said: Answer, usage: Usage, replacement: Replacement, notes: list[str]) -> None:
    """Print everything as one JSON object."""
    from vllm_ir_host_transformers.measuring import as_json

    content: dict[str, Any] = {
        "model": loaded.name,
        "dtype": loaded.dtype,
        "device": str(loaded.device),
        "prompt": prompt,
        "answer": said.text,
        "tokens": len(said.token_ids),
        "token_ids": list(said.token_ids),
        "seconds": round(said.seconds, 4),
        "first_token_seconds": round(said.first_token_seconds, 4),
        "tokens_per_second": round(said.tokens_per_second, 2),
        "forward_passes": said.forward_passes,
        "norms": usage.norms,
        "ops": as_json(usage),
        "notes": notes,
        "replaced": [
            {"name": p.name, "kind": p.kind, "op": p.op, "module": p.module, "note": p.note}
            for p in replacement.replaced
        ],
        "left": [{"name": p.name, "kind": p.kind, "module": p.module, "reason": p.reason} for p in replacement.left],
    }
    output.emit_json(content)
