"""The entrance of `vllm-ir`: finds the verb, runs it, and turns what goes wrong into a sentence and an exit code.

A verb is a function from the rest of the command line to an exit code, here as in other distributions:
0 clean, 1 a finding, 2 usage or configuration, 3 nothing to check.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from vllm_ir.cli import commands, output
from vllm_ir.cli.output import complain
from vllm_ir.errors import ConfigurationError, IrError, NoWorkingFolder, UnknownVerb, UnwritableOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS: Final = {
    "list": ("vllm_ir.cli.listing", "installed providers, whether they can run here, and why not"),
    "show": ("vllm_ir.cli.show", "one provider or op in full"),
    "lock": ("vllm_ir.cli.lock", "write down which kernels run, with the bytes of what brings them"),
    "check": ("vllm_ir.cli.check", "hold this machine against a lock"),
    "export": ("vllm_ir.cli.export", "what a lock pins, as requirements for installers"),
    "explain": ("vllm_ir.cli.explain", "which kernel an op runs, who decided that, and why no other"),
    "doctor": ("vllm_ir.cli.doctor", "what a bug report needs; --probe runs every provider in its own process"),
}
"""The core's own verbs: the module whose `run` is called, and what it is for."""

INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""What a shell reports for a program that SIGINT or SIGPIPE ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code of the process.

    Args:
        arguments: the command line without the program's name; that of the process when None.
    """
    try:
        output.settle_streams()
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        complain("interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        output.discard_rest()  # the reader has gone (`| head`)
        return BROKEN_PIPE
    except OSError as error:
        if not output.is_lost(error):
            raise
        output.discard_rest()
        complain(str(UnwritableOutput(reason=error.strerror or str(error))))
        return 2
    except IrError as error:
        complain(str(error))
        return 2 if isinstance(error, ConfigurationError) else 1
    return code


def _run(arguments: list[str]) -> int:
    """Run what the first argument names."""
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        _help()
        return 0 if arguments else 2
    if arguments[0] in {"-V", "--version"}:
        from importlib.metadata import version

        print(f"vllm-ir {version('vllm-ir')}")
        return 0
    try:
        os.getcwd()  # noqa: PTH109 - whether there is one is all that is asked
    except OSError as error:
        raise NoWorkingFolder(reason=error.strerror or str(error)) from error
    verb, *rest = arguments
    if verb in VERBS:
        code: int = import_module(VERBS[verb][0]).run(rest)
        return code
    others = commands.find()
    if verb not in others:
        raise UnknownVerb(verb=verb, known=[*VERBS, *others])
    return commands.load(verb, others[verb])(rest)


def _help() -> None:
    """Print what there is to do, the verbs of other distributions included, without loading any."""
    print("usage: vllm-ir VERB [options]      (vllm-ir VERB --help tells more)\n\nverbs:")
    for verb, (_, text) in VERBS.items():
        print(f"  {verb:<12} {text}")
    for verb, found in commands.find().items():
        print(f"  {verb:<12} {commands.describe(verb, found)}")
    print("\nEvery verb takes --json. Exit codes: 0 clean, 1 a finding, 2 usage or configuration, 3 nothing to check.")
