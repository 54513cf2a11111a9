"""`vllm-ir run`: let a model answer on the kernels you choose, and see which ran, how often, and why."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Final, Literal

from vllm_ir_host_transformers.cli import showing
from vllm_ir_host_transformers.cli.progress import TerminalSteps

if TYPE_CHECKING:
    from vllm_ir_host_transformers.answering import Answer
    from vllm_ir_host_transformers.compiling import Compilation
    from vllm_ir_host_transformers.models.loading import Loaded

PROMPT: Final = "What is the capital of France?"
DTYPES: Final = ("float32", "bfloat16", "float16", "auto")
CACHES: Final = ("dynamic", "static")
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
        from vllm_ir_host_transformers.replace import use_ir_ops

        replacement = use_ir_ops(loaded.model, fuse_residual=fuse)
        meter = Meter()
    said, compilation = _answer(loaded, options, steps)
    usage = meter.read(replacement, said.forward_passes)
    sentence = norm_sentence(usage) if compilation is None else compilation.norm_sentence()
    if sentence is not None:
        notes.append(sentence)
    if not said.templated:
        notes.append("the model has no chat template, so the prompt went in as it is")
    if compilation is not None and compilation.late:
        notes.append(f"graphs compiled while it answered, which its times include: {compilation.late}")
    missed = unmet(usage) if compilation is None else compilation.unmet(usage)
    notes += missed
    story = showing.Story(loaded, options.prompt, said, usage, replacement, compilation, tuple(notes), options.cache)
    if options.json:
        showing.emit(story)
    else:
        showing.show(story)
    return 1 if missed else 0


def _answer(loaded: Loaded, options: argparse.Namespace, steps: TerminalSteps) -> tuple[Answer, Compilation | None]:
    """Let the model answer, compiled first if that is wished.

    Raises:
        CannotCompile: torch or its C++ compiler cannot compile the model.
    """
    from vllm_ir_host_transformers.answering import answer

    show = showing.ignore if options.json else showing.write
    cache = options.cache
    if not options.compile:
        return answer(loaded, options.prompt, max_new_tokens=options.max_new_tokens, show=show, cache=cache), None
    from vllm_ir.errors import IrError

    from vllm_ir_host_transformers.compiling import TOKENS, Compilation, compiled
    from vllm_ir_host_transformers.errors import CannotCompile

    with compiled(loaded.model) as graphs:
        begin = time.perf_counter()
        few = min(TOKENS, options.max_new_tokens)
        try:
            with steps.step("compiling", aloud=True):
                answer(loaded, options.prompt, max_new_tokens=few, show=showing.ignore, cache=cache)
        except IrError:
            raise
        except Exception as error:
            # Dynamo, Inductor and compilers raise dozens of kinds here; the first line says what is wrong.
            cause = str(error).strip().partition("\n")[0] or type(error).__name__
            raise CannotCompile(model=loaded.name, cause=cause) from error
        seconds, before = time.perf_counter() - begin, len(graphs)
        said = answer(loaded, options.prompt, max_new_tokens=options.max_new_tokens, show=show, cache=cache)
    return said, Compilation(tuple(graphs), seconds, len(graphs) - before)


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
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the model first, with the roundings of eager kept; takes minutes the first time, is then cached",
    )
    parser.add_argument(
        "--cache",
        choices=CACHES,
        default="dynamic",
        help="of keys and values: dynamic grows with every token, static is as large as it can become from the start",
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
