"""The errors of plugins, hooks and manifests: every class pickles, and its sentence names who, what and the fix."""

from __future__ import annotations

import pickle

import pytest
from vllm_ir import errors
from vllm_ir.errors import hooks, manifest, plugins

CASES: list[tuple[errors.IrError, tuple[str, ...]]] = [
    (errors.BadPlatform(platform="P", field="name", got="''", wanted="a text"), ("P", "name", "Set it")),
    (
        errors.UnknownAllowedOp(variable="V", rule="a:rms_nrm", op="rms_nrm", known=("rms_norm",)),
        ("V", "'a:rms_nrm'", "Did you mean 'rms_norm'?", "take it out of V"),
    ),
    (errors.UnknownAllowed(variable="V", name="tritn", known=("triton",)), ("V", "'tritn'", "Did you mean 'triton'")),
    (
        errors.DuplicateProvider(provider="p", distributions=("a", "b"), variable="V"),
        ("'p'", "'a', 'b'", "deny the others: V=b"),
    ),
    (
        errors.DuplicatePlatform(platforms=("n", "t"), distributions=("a", "b"), variable="V"),
        ("'n', 't'", "'a', 'b'", "V=b"),
    ),
    (
        errors.MissingLibrary(distribution="d", provider="p", library="l", wanted=">=1", got="x is not", install="li"),
        ("'p' of d", "l >=1", "x is not", "pip install 'li>=1'"),
    ),
    (errors.WrongPlatform(distribution="d", provider="p", wanted="cuda", got="cpu"), ("'p' of d", "cuda", "cpu")),
    (errors.WrongProviderApi(distribution="d", got="9", wanted=("1",)), ("d", "'9'", "'1'", "Install a version")),
    (errors.BrokenImport(distribution="d", where="hook h", cause="E: e"), ("d", "hook h", "E: e", "--load")),
    (errors.MissingModule(distribution="d", entry_point="e", module="m"), ("d", "'e'", "'m'", "Reinstall")),
    (
        errors.MissingAttribute(distribution="d", entry_point="e", module="m", attribute="plugin", known=("plugins",)),
        ("d", "'plugin'", "'m'", "Did you mean 'plugins'"),
    ),
    (errors.BadEntryPoint(distribution="d", got="'a'", wanted="one"), ("d", "'a'", "wanted one")),
    (errors.BadHookResult(distribution="d", hook="h", got="int 3", wanted="a list"), ("d", "h", "int 3", "a list")),
    (errors.BadPass(distribution="d", got="int 3"), ("d", "returned int 3", "GraphPass")),
    (errors.BadDeclaration(distribution="d", reason="It is wrong."), ("d", "It is wrong.", "Nothing of it")),
    (errors.BadHookSignature(distribution="d", reason="extra argument"), ("d", "extra argument", "Take only")),
    (errors.MisspeltHook(distribution="d", hook="hok", known=("hook",)), ("d", "'hok'", "Did you mean 'hook'")),
    (errors.UnmarkedHook(distribution="d", hook="h"), ("d", "'h'", "@vllm_ir.hookimpl")),
    (
        errors.DeniedByPolicy(distribution="d", provider="p", variable="V", value="x", allows=True),
        ("'p' of d", "V='x' does not list it"),
    ),
    (errors.ManifestMissing(distribution="d", package="p", file="f"), ("d", "'p'", "f", "docs/manifest.md")),
    (errors.ManifestNotToml(file="f", key="", got="g", wanted="w"), ("f: the file is g, wanted w",)),
    (errors.ManifestWrongType(file="f", key="k", got="g", wanted="w"), ("f: k is g, wanted w",)),
    (errors.ManifestWrongValue(file="f", key="k", got="g", wanted="w"), ("f: k is g, wanted w",)),
    (errors.ManifestMissingKey(file="f", key="k", got="g", wanted="w"), ("f: k is g, wanted w",)),
    (errors.ManifestUnknownKey(file="f", key="k", got="g", wanted="w"), ("f: k is g, wanted w",)),
    (errors.ManifestContradiction(file="f", key="k", got="g", wanted="w"), ("f: k is g, wanted w",)),
    (errors.ManifestNewer(file="f", key="k", got="g", wanted="w"), ("f: k is g, wanted w",)),
    (
        errors.ManifestDisagrees(distribution="d", what="op", manifest="this", hooks="that"),
        ("d", "op", "the manifest says this", "the hooks say that"),
    ),
    (errors.WarmUpFailed(distribution="d", cause="E: e"), ("d", "E: e", "deny the")),
]


@pytest.mark.parametrize(("error", "said"), CASES, ids=[type(case[0]).__name__ for case in CASES])
def test_each_says_who_what_and_the_fix_and_survives_pickling(error: errors.IrError, said: tuple[str, ...]) -> None:
    """The facts are attributes and come back from a worker process with the sentence."""
    for part in said:
        assert part in str(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_every_class_was_looked_at() -> None:
    """A class that is added without a case above fails here; two roots are never raised themselves."""
    defined = {
        kind
        for module in (hooks, manifest, plugins)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, errors.IrError) and kind.__module__ == module.__name__
    }
    assert defined - {type(error) for error, _ in CASES} == {errors.ManifestError, errors.DistributionConflict}


def test_every_failure_has_a_kind_and_says_whether_it_is_a_fault() -> None:
    """What this machine or its operator leaves out is no fault; everything else is somebody's."""
    faultless = {type(error) for error, _ in CASES if isinstance(error, errors.ProviderError) and not error.fault}
    assert faultless == {errors.MissingLibrary, errors.WrongPlatform, errors.DeniedByPolicy}
    assert all(error.kind for error, _ in CASES if isinstance(error, errors.ProviderError))
