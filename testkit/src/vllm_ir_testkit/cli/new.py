"""`vllm-ir new NAME`: write a provider distribution that installs, passes conformance and is yours to change."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_ir.cli import output

from vllm_ir_testkit.scaffold import naming, writing


def run(arguments: list[str]) -> int:
    """Write a distribution and tell what to type next.

    Args:
        arguments: the command line behind the verb.

    Returns:
        0; everything else is raised.

    Raises:
        ConfigurationError: the name is bad, reserved or taken, or the folder exists.
    """
    options = _parser().parse_args(arguments)
    names = naming.read(options.name, naming.installed_providers())
    folder = writing.write(names, Path(options.into))
    paths = [str(path) for path in writing.written(folder)]
    commands = [f"pip install -e {_quoted(folder)}", f"vllm-ir conformance {names.provider}", "vllm-ir list"]
    if options.json:
        output.emit_json(
            {
                "provider": names.provider,
                "distribution": names.distribution,
                "package": names.package,
                "folder": str(folder),
                "files": paths,
                "next": commands,
            }
        )
        return 0
    output.print_text(f"Wrote {folder}:", output.BOLD)
    for path in paths:
        output.print_text(f"  {path}")
    output.print_text("")
    output.print_text("Next:", output.BOLD)
    for command in commands:
        output.print_text(f"  {command}")
    return 0


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's options."""
    parser = argparse.ArgumentParser(
        prog="vllm-ir new",
        description="Write a provider distribution with one kernel, its manifest and its tests.",
        epilog="The name is what users will write in priority lists: lower-case letters, digits, '-' or '_'.",
    )
    parser.add_argument("name", metavar="NAME", help="of the provider, such as demo_vendor")
    parser.add_argument("--into", default=".", metavar="DIR", help="the folder to make it in (the working directory)")
    parser.add_argument("--json", action="store_true", help="print an object for programs")
    return parser


def _quoted(folder: Path) -> str:
    """Return a folder as pip takes it: a bare name would be looked up in an index."""
    text = str(folder)
    return text if folder.is_absolute() or text.startswith(".") else f"./{text}"
