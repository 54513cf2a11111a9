"""The hooks of one distribution: what a module with mistakes is told, and that no mistake gets past the wall."""

from __future__ import annotations

import logging
import types
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir import errors, runtime
from vllm_ir.environment import Environment
from vllm_ir.plugins.hooks import (
    HOOKS,
    IMPLEMENTATIONS,
    OPS,
    PLATFORM,
    WARM_UP,
    Hooks,
    guard,
    import_hooks,
    traceback_of,
)
from vllm_ir.plugins.hookspecs import hookimpl
from vllm_ir.plugins.records import DistributionRecord
from vllm_ir.preferences import Preferences
from vllm_ir.settings import Settings
from vllm_ir.state import State

if TYPE_CHECKING:
    from core.tests.plugins.conftest import Site


def module(source: str) -> types.ModuleType:
    """Return a module made of source."""
    made = types.ModuleType("made_by_hand")
    exec("from vllm_ir.plugins.hookspecs import hookimpl\n" + source, vars(made))  # noqa: S102 - our own text
    return made


def hooks(source: str) -> Hooks:
    """Return the hooks of a module made of source."""
    return Hooks("made", module(source))


def record(name: str) -> DistributionRecord:
    """Return the record of a distribution whose entry point has this value."""
    return DistributionRecord("made", "1", "/", "fake", name)


def test_the_hooks_are_those_of_the_specifications() -> None:
    """Every specification is called by somebody, and every one has its contract written down."""
    from vllm_ir.plugins import hookspecs

    specified = {name for name in vars(hookspecs) if name.startswith("vllm_ir_")}
    assert specified == set(HOOKS)
    assert all(len(str(getattr(hookspecs, name).__doc__).splitlines()) > 1 for name in specified)


def test_a_hook_is_called_with_what_it_asks_for() -> None:
    """A hook may leave out arguments; a hook that is not there answers nothing."""
    found = hooks("@hookimpl\ndef vllm_ir_implementations(platform):\n    return [platform]\n")
    assert found.has(IMPLEMENTATIONS)
    assert not found.has(OPS)
    assert found.call(IMPLEMENTATIONS, platform="x") == ["x"]
    assert found.call(OPS) is None
    assert hooks("@hookimpl\ndef vllm_ir_implementations():\n    return []\n").call(IMPLEMENTATIONS, platform=1) == []


def test_a_trace_tells_each_call_of_a_hook_and_what_came_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """With VLLM_IR_TRACE=1, at DEBUG: whose hook, with what, and what it returned or raised; without it nothing."""
    source = (
        "@hookimpl\ndef vllm_ir_implementations(platform):\n    return [platform] * 100\n"
        "@hookimpl\ndef vllm_ir_ops():\n    raise OSError('no')\n"
    )
    caplog.set_level(logging.DEBUG, logger="vllm_ir")
    before = runtime.current()._state
    runtime.current()._state = State(Preferences(Environment(trace=True), Settings()))
    try:
        traced = hooks(source)
    finally:
        runtime.current()._state = before
    traced.call(IMPLEMENTATIONS, platform="x")
    traced.call(PLATFORM)
    with pytest.raises(errors.BrokenImport):
        traced.call(OPS)
    lines = [each.getMessage() for each in caplog.records]
    assert lines[0] == "made: hook vllm_ir_implementations(platform='x')"
    assert lines[1].startswith("made: hook vllm_ir_implementations returned ['x', 'x'")
    assert lines[1].endswith("...")
    assert lines[2:] == ["made: hook vllm_ir_ops()", "made: hook vllm_ir_ops raised OSError('no')"]
    caplog.clear()
    hooks(source).call(IMPLEMENTATIONS, platform="x")
    assert caplog.records == []


def test_hooks_may_live_on_an_object() -> None:
    """The entry point may name an attribute of its module."""

    class Plugin:
        """Hooks as methods."""

        @hookimpl
        def vllm_ir_ops(self) -> list[Any]:
            """Return no ops."""
            return []

    assert Hooks("made", Plugin()).call(OPS) == []


@pytest.mark.parametrize(
    "source",
    [
        "@hookimpl\ndef vllm_ir_implementation(platform):\n    return []\n",
        "def vllm_ir_implementation(platform):\n    return []\n",
        "@hookimpl(specname='vllm_ir_implementation')\ndef anything(platform):\n    return []\n",
    ],
)
def test_a_misspelt_hook_is_told_with_a_suggestion(source: str) -> None:
    """Marked or only named so, it would never be called."""
    with pytest.raises(errors.MisspeltHook, match="Did you mean 'vllm_ir_implementations'") as caught:
        hooks(source)
    assert caught.value.kind == "misspelt hook"


def test_a_hook_without_its_marker_is_told() -> None:
    """The right name alone does nothing."""
    with pytest.raises(errors.UnmarkedHook, match=r"puts @vllm_ir\.hookimpl before it"):
        hooks("def vllm_ir_ops():\n    return []\n")


def test_what_is_only_imported_is_no_misspelt_hook() -> None:
    """A package, a class and a function of another module may begin with the same letters."""
    made = module("import json as vllm_ir_json\nclass vllm_ir_class: ...\n")
    vars(made)["vllm_ir_helper"] = import_hooks
    assert not Hooks("made", made).has(OPS)


def test_an_argument_that_no_specification_has_is_told() -> None:
    """A hook of another version asks for what it would never get."""
    with pytest.raises(errors.BadHookSignature, match="surprise"):
        hooks("@hookimpl\ndef vllm_ir_ops(surprise):\n    return []\n")


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (OSError("libfast.so.1: cannot open"), errors.BrokenImport, "hook x raised OSError: libfast.so.1: cannot open"),
        (SystemExit(3), errors.BrokenImport, "raised SystemExit: 3"),
        (KeyError(), errors.BrokenImport, "raised KeyError"),
        (errors.BadName(kind="Op", name="A"), errors.BadDeclaration, "Op name 'A' is not legal"),
        (errors.UnknownOp(op="a", known=()), errors.BadDeclaration, "op 'a' is not registered"),
    ],
)
def test_the_wall_holds_against(raised: BaseException, kind: type[errors.ProviderError], said: str) -> None:
    """Whatever foreign code raises becomes one of our kinds, with the cause kept for its traceback."""

    def run() -> None:
        """Raise."""
        raise raised

    with pytest.raises(kind, match="Distribution made") as caught:
        guard("made", "hook x", run)
    assert said in str(caught.value)
    assert caught.value.__cause__ is raised
    told = traceback_of(caught.value)
    assert told is not None
    assert "in run" in told


def test_the_wall_lets_the_user_out() -> None:
    """Ctrl-C is not a provider's failure."""

    def run() -> None:
        """Be interrupted."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard("made", "hook x", run)


def test_an_error_without_a_cause_has_no_traceback() -> None:
    """A manifest that is wrong needs no traceback of ours."""
    assert traceback_of(errors.MisspeltHook(distribution="d", hook="h", known=())) is None


def test_a_module_that_is_not_there_differs_from_one_that_misses_another(site: Site) -> None:
    """The first is the entry point's mistake, the second an installation's."""
    package = site.provider(hooks="import absent_library\n")
    with pytest.raises(errors.MissingModule, match=r"names module 'vllm_ir_provider_fake\.absent'"):
        import_hooks(record(f"{package}.absent"))
    with pytest.raises(errors.BrokenImport, match="ModuleNotFoundError: No module named 'absent_library'"):
        import_hooks(record(f"{package}.hooks"))


def test_an_attribute_that_is_not_there_is_told(site: Site) -> None:
    """With what the module has instead."""
    package = site.provider(hooks="class plugins: ...\n")
    with pytest.raises(errors.MissingAttribute, match="Did you mean 'plugins'") as caught:
        import_hooks(record(f"{package}.hooks:plugin"))
    assert caught.value.kind == "broken import"
    assert not import_hooks(record(f"{package}.hooks:plugins")).has(PLATFORM)


def test_a_syntax_error_is_a_broken_import(site: Site) -> None:
    """Half a file is no module."""
    package = site.provider(hooks="def broken(:\n")
    with pytest.raises(errors.BrokenImport, match="raised SyntaxError"):
        import_hooks(record(f"{package}.hooks"))


def test_a_hook_that_raises_is_told_by_name() -> None:
    """The sentence says which of the hooks it was."""
    found = hooks("@hookimpl\ndef vllm_ir_warm_up(platform, device, dtypes):\n    1 / 0\n")
    with pytest.raises(errors.BrokenImport, match="hook vllm_ir_warm_up raised ZeroDivisionError"):
        found.call(WARM_UP, platform=None, device=None, dtypes=())
