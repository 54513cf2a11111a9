"""Verbs of other distributions: shown without loading, loaded only when called, never twice or against the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.cli.commands import denied_by, purpose_of
from vllm_ir.environment import Environment
from vllm_ir.plugins.distributions import EntryPoint, Installed
from vllm_ir.policy import Policy
from vllm_ir.settings import Settings

if TYPE_CHECKING:
    from core.tests.cli.conftest import Site

GREET = "import sys\ndef main(arguments):\n    print('hello', *arguments)\n    return 1\n"
BOMB = "raise SystemExit('imported')\n"


def test_a_verb_runs_with_the_rest_of_the_line_and_gives_its_exit_code(site: Site) -> None:
    """The contract is a list of texts in, an exit code out."""
    site.add_verb("greet", "dist-greet", GREET)
    done = site.run("greet", "--loud", "you")
    assert (done.stdout, done.returncode) == ("hello --loud you\n", 1)


def test_help_lists_it_with_its_distribution_and_loads_nothing(site: Site) -> None:
    """`--help` reads metadata alone."""
    site.add_verb("greet", "dist-greet", BOMB)
    done = site.run("--help")
    assert "  greet        (from dist-greet 1.0)" in done.stdout.splitlines()
    assert done.returncode == 0


def test_help_says_what_a_verb_does_by_the_docstring_of_its_module(site: Site) -> None:
    """The first line, without the verb itself; read and not imported, and nothing where it cannot be read."""
    site.add_verb("greet", "dist-greet", '"""`vllm-ir greet NAME`: say hello, or good evening.\n\nMore."""\n' + BOMB)
    site.add_verb("leave", "dist-leave", '"""Say goodbye."""\n' + BOMB)
    site.add_verb("torn", "dist-torn", '"""Not Python.')
    lines = site.run("--help").stdout.splitlines()
    assert "  greet        say hello, or good evening (from dist-greet 1.0)" in lines
    assert "  leave        Say goodbye (from dist-leave 1.0)" in lines
    assert "  torn         (from dist-torn 1.0)" in lines


def test_the_purpose_of_a_module_in_a_package_is_its_own() -> None:
    """It lies beside the package's own file; what is not there has none."""
    assert purpose_of(EntryPoint("x", "vllm_ir.cli.commands", "load")).startswith("Verbs of other distributions")
    assert purpose_of(EntryPoint("x", "vllm_ir.errors", None)).startswith("Every error of vllm-ir")
    assert purpose_of(EntryPoint("x", "vllm_ir.nothing", None)) == ""
    assert purpose_of(EntryPoint("x", "no_such_package_anywhere", None)) == ""


def test_a_core_verb_cannot_be_overridden(site: Site) -> None:
    """`list` is the core's, whatever a distribution says."""
    site.add_verb("list", "dist-greedy", BOMB)
    done = site.run("list")
    assert "native" in done.stdout
    assert done.returncode == 0
    assert done.stderr == ""


def test_two_distributions_with_one_verb_are_an_error_naming_both(site: Site) -> None:
    """Neither can be meant, so neither is loaded."""
    site.add_verb("greet", "dist-one", BOMB)
    site.add_verb("greet", "dist-two", BOMB)
    done = site.run("greet")
    assert done.returncode == 2
    assert "'dist-one', 'dist-two'" in done.stderr or "'dist-two', 'dist-one'" in done.stderr
    assert "neither can be meant" in site.run("--help").stdout


def test_a_denied_distribution_is_never_loaded(site: Site) -> None:
    """The deny list reaches verbs too, and both `--help` and the call say so."""
    site.add_verb("greet", "dist-greet", BOMB)
    done = site.run("greet", VLLM_IR_PROVIDERS_DISABLED="Dist.Greet")
    assert done.returncode == 2
    assert "which is denied by VLLM_IR_PROVIDERS_DISABLED" in done.stderr
    help_text = site.run("--help", VLLM_IR_PROVIDERS_DISABLED="dist-greet").stdout
    assert "denied by VLLM_IR_PROVIDERS_DISABLED" in help_text


def test_a_distribution_that_a_policy_file_denies_is_never_loaded(site: Site) -> None:
    """The file is named where the variable would be."""
    site.add_verb("greet", "dist-greet", BOMB)
    policy = site.folder / "policy.toml"
    policy.write_text('deny = ["dist-greet"]', encoding="utf-8")
    done = site.run("greet", VLLM_IR_POLICY=str(policy))
    assert done.returncode == 2
    assert f"which is denied by deny in {policy}" in done.stderr


def policy(**variables: str) -> Policy:
    """Return what variables say."""
    return Policy.read(Environment.read(variables), Settings())


def test_lists_of_providers_do_not_reach_a_host() -> None:
    """A distribution that brings no provider is denied by its own name alone."""
    host = Installed("a-host", "1.0", "", (), (EntryPoint("run", "a_host", "main"),), ())
    assert denied_by(host, policy(VLLM_IR_PROVIDERS="", VLLM_IR_PROVIDERS_DISABLED="*")) is None
    assert denied_by(host, policy(VLLM_IR_PROVIDERS_DISABLED="A_Host")) == "VLLM_IR_PROVIDERS_DISABLED"


def test_a_distribution_is_denied_when_all_its_providers_are() -> None:
    """A verb beside a provider follows the provider's fate."""
    one = Installed("a-kit", "1.0", "", (EntryPoint("kit", "a_kit", None),), (EntryPoint("new", "a_kit", "main"),), ())
    assert denied_by(one, Policy()) is None
    assert denied_by(one, policy(VLLM_IR_PROVIDERS_DISABLED="kit")) == "VLLM_IR_PROVIDERS_DISABLED"
    assert denied_by(one, policy(VLLM_IR_PROVIDERS="other")) == "VLLM_IR_PROVIDERS"


def test_a_verb_that_cannot_be_imported_says_which_distribution(site: Site) -> None:
    """A broken import, a missing attribute and a thing that cannot be called each end in one sentence and exit 1."""
    site.add_verb("broken", "dist-broken", "import nothing_of_this_name\n")
    site.add_verb("empty", "dist-empty", "")
    site.add_verb("number", "dist-number", "main = 3\n")
    for verb, cause in (
        ("broken", "ModuleNotFoundError"),
        ("empty", "AttributeError"),
        ("number", "3 cannot be called"),
    ):
        done = site.run(verb)
        assert done.returncode == 1, done.stderr
        assert f"Verb {verb!r} of dist-{verb} did not load" in done.stderr
        assert cause in done.stderr
        assert "Traceback" not in done.stderr
