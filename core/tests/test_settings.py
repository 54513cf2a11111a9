"""The settings file of a folder: which one is read, and what it may not say."""

from __future__ import annotations

import os
import pickle
import socket
from typing import TYPE_CHECKING

import pytest
from vllm_ir.environment import Environment
from vllm_ir.errors import MalformedSettings
from vllm_ir.policy import Policy
from vllm_ir.preferences import Preferences
from vllm_ir.settings import LIMIT, Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OWN = 'op-priority = { rms_norm = ["a", "native"], silu_and_mul = "b, c" }\n'
PROJECT = '[tool.vllm-ir.op-priority]\nrms_norm = ["project"]\n'


def test_a_folder_without_a_file(tmp_path: Path) -> None:
    """Nothing is asked for, and no file is named."""
    assert Settings.read(tmp_path) == Settings(None, {})


def test_the_working_folder_is_read_by_default(tmp_path: Path) -> None:
    """Tests stand in a folder of their own."""
    (tmp_path / "vllm-ir.toml").write_text(OWN)
    assert Settings.read() == Settings(
        tmp_path / "vllm-ir.toml", {"rms_norm": ("a", "native"), "silu_and_mul": ("b", "c")}
    )


def test_its_own_file_goes_before_the_project(tmp_path: Path) -> None:
    """One file holds, not a mixture; without the first the second is read."""
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    assert Settings.read(tmp_path) == Settings(tmp_path / "pyproject.toml", {"rms_norm": ("project",)})
    (tmp_path / "vllm-ir.toml").write_text("")
    both = Settings.read(tmp_path)
    assert (both.file, both.op_priority) == (tmp_path / "vllm-ir.toml", {})
    assert (both.passed_over, both.lost) == (tmp_path / "pyproject.toml", ())
    (doubt,) = both.doubts
    assert doubt == (
        f"{tmp_path / 'pyproject.toml'}: [tool.vllm-ir] is passed over, because vllm-ir.toml goes before it."
        " Move it there, or remove it."
    )


@pytest.mark.parametrize("text", ["", "[tool.other]\na = 1\n", "tool = 3\n", "[tool.vllm-ir]\n"])
def test_a_project_that_says_nothing_is_passed_over_in_silence(tmp_path: Path, text: str) -> None:
    """Nothing is lost with it."""
    (tmp_path / "vllm-ir.toml").write_text("")
    (tmp_path / "pyproject.toml").write_text(text)
    assert Settings.read(tmp_path) == Settings(tmp_path / "vllm-ir.toml")


def test_a_project_that_cannot_be_read_is_passed_over_with_a_word(tmp_path: Path) -> None:
    """It may have said something."""
    (tmp_path / "vllm-ir.toml").write_text("")
    (tmp_path / "pyproject.toml").write_text("[")
    (doubt,) = Settings.read(tmp_path).doubts
    assert doubt.startswith(f"{tmp_path / 'pyproject.toml'}: it cannot be read: ")
    assert doubt.endswith(" It is passed over, because vllm-ir.toml goes before it.")


@pytest.mark.parametrize("key", ["allow = ['a']", "deny = ['a']", "strict = true", "require = ['batch_invariant']"])
def test_a_policy_that_is_passed_over_is_an_error(tmp_path: Path, key: str) -> None:
    """A policy only narrows, so no other file may lift it; one that VLLM_IR_POLICY names is read."""
    own, project = tmp_path / "vllm-ir.toml", tmp_path / "pyproject.toml"
    own.write_text("strict = false\n")
    project.write_text(f"[tool.vllm-ir]\n{key}\n")
    with pytest.raises(MalformedSettings) as caught:
        Policy.read(Environment.read({}), Settings.read(tmp_path))
    assert str(caught.value) == (
        f"{project}: [tool.vllm-ir] has {key.partition(' ')[0]} and would hold nobody to it, because {own} goes"
        " before it. Move it there, or name this file in VLLM_IR_POLICY."
    )
    assert caught.value.file == str(project)
    named = Policy.read(Environment.read({"VLLM_IR_POLICY": str(project)}), Settings.read(tmp_path))
    assert named.files == (str(project),)


def _folder(file: Path) -> str:
    """Make a folder in a file's place."""
    file.mkdir()
    return "a folder"


def _pipe(file: Path) -> str:
    """Make a pipe there."""
    os.mkfifo(file)
    return "a pipe"


def _link(file: Path) -> str:
    """Make a link to nowhere there."""
    file.symlink_to("/nope/x.toml")
    return "a link to '/nope/x.toml', where nothing is"


def _socket(file: Path) -> str:
    """Make a socket there."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(file))  # a path of a socket may have about a hundred characters
    return "a device or a socket"


@pytest.mark.parametrize("make", [_folder, _pipe, _link, _socket])
@pytest.mark.parametrize("name", ["vllm-ir.toml", "pyproject.toml"])
def test_a_settings_file_that_is_no_regular_file_is_an_error(
    tmp_path: Path, make: Callable[[Path], str], name: str
) -> None:
    """Its policy must not be gone in silence, and nobody waits for what a pipe may say."""
    kind = make(tmp_path / name)
    with pytest.raises(MalformedSettings) as caught:
        Settings.read(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / name}: it is no regular file but {kind}. Put the file there (a bind mount of one that is"
        " missing outside makes a folder), or remove it."
    )


@pytest.mark.parametrize("value", ['[""]', '["a", " "]', '""', '" , "'])
@pytest.mark.parametrize("key", ["allow", "deny", "require"])
def test_an_entry_of_a_policy_without_a_name_is_an_error(tmp_path: Path, key: str, value: str) -> None:
    """A template leaves it whose variable is unset, and nobody would be held to anything."""
    (tmp_path / "vllm-ir.toml").write_text(f"{key} = {value}\n")
    with pytest.raises(MalformedSettings, match=rf"{key} has '[ ,]*', which names nothing\. Take it out, or write"):
        Settings.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[project]\nname = 'x'\n", "[tool.other]\na = 1\n", "tool = 3\n"])
def test_a_project_that_says_nothing_of_it(tmp_path: Path, text: str) -> None:
    """Most projects."""
    (tmp_path / "pyproject.toml").write_text(text)
    assert Settings.read(tmp_path) == Settings()


def test_no_folder_above_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds can be read beside where the process was started."""
    (tmp_path / "vllm-ir.toml").write_text(OWN)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    assert Settings.read() == Settings()


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        (
            "op-prioritty = {}",
            "key 'op-prioritty' means nothing (keys: op-priority, allow, deny, require, strict).",
            "Did you mean 'op-priority'? Rename or remove it.",
        ),
        (
            "denied = ['a']",
            "key 'denied' means nothing (keys: op-priority, allow, deny, require, strict).",
            "Did you mean 'deny'? Rename or remove it.",
        ),
        (
            "tool = 1",
            "key 'tool' means nothing (keys: op-priority, allow, deny, require, strict).",
            "Rename or remove it.",
        ),
        ("strict = 1", "strict is 1, wanted true or false.", "Write strict = true."),
        (
            "allow = 3",
            "allow is 3, wanted a list of providers, or of providers with an op.",
            'Write allow = ["a_provider", "another:rms_norm"].',
        ),
        (
            "deny = [['a', 'rms_norm']]",
            "deny is [['a', 'rms_norm']], wanted a list of providers, or of providers with an op.",
            'Write deny = ["a_provider", "another:rms_norm"].',
        ),
        (
            "require = ['batch-invariant']",
            "require has 'batch-invariant', which is no property (properties: batch_invariant).",
            "Did you mean 'batch_invariant'? Write require = [\"batch_invariant\"].",
        ),
        ("require = true", "require is True, wanted a list of properties.", 'Write require = ["batch_invariant"].'),
        ("op-priority = 3", "op-priority is 3, wanted a table.", "Write [op-priority]."),
        (
            "op-priority.rms_norm = 3",
            "op-priority.rms_norm is 3, wanted a list of provider names.",
            'Write rms_norm = ["native"].',
        ),
        (
            "op-priority.rms_norm = ['a', 3]",
            "op-priority.rms_norm is ['a', 3], wanted a list of provider names.",
            'Write rms_norm = ["native"].',
        ),
    ],
)
@pytest.mark.parametrize("project", [False, True])
def test_what_a_file_may_not_say(tmp_path: Path, text: str, problem: str, fix: str, project: bool) -> None:
    """An unknown key and a wrong type are errors that name the file, in either file."""
    file = tmp_path / ("pyproject.toml" if project else "vllm-ir.toml")
    file.write_text(f"[tool.vllm-ir]\n{text}\n" if project else text)
    with pytest.raises(MalformedSettings) as caught:
        Settings.read(tmp_path)
    assert str(caught.value) == f"{file}: {problem} {fix}"
    assert (caught.value.file, caught.value.fix) == (str(file), fix)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - made here


def test_a_table_that_is_none(tmp_path: Path) -> None:
    """`tool.vllm-ir` has to be a table."""
    (tmp_path / "pyproject.toml").write_text("[tool]\nvllm-ir = 3\n")
    with pytest.raises(MalformedSettings, match=r"vllm-ir is 3, wanted a table\. Write \[tool\.vllm-ir\]\."):
        Settings.read(tmp_path)


@pytest.mark.parametrize("content", [b"op-priority = [", b"\xff\xfe", b"a = 1\na = 2\n"])
@pytest.mark.parametrize("name", ["vllm-ir.toml", "pyproject.toml"])
def test_a_file_that_is_no_toml(tmp_path: Path, content: bytes, name: str) -> None:
    """The parser's own words follow the file's name."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MalformedSettings) as caught:
        Settings.read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / name}: it cannot be read: ")
    assert str(caught.value).endswith(" Mend the file.")


POLICY = """
allow = ["a", "b:rms_norm"]
deny = "c, *:silu_and_mul"
strict = true
require = ["batch_invariant"]
"""


@pytest.mark.parametrize("project", [False, True])
def test_a_policy_in_either_file(tmp_path: Path, project: bool) -> None:
    """The same keys, whether the file names a folder's settings or a policy; texts with commas are lists."""
    file = tmp_path / ("pyproject.toml" if project else "vllm-ir.toml")
    file.write_text(f"[tool.vllm-ir]{POLICY}" if project else POLICY)
    for read in (Settings.read(tmp_path), Settings.read_policy(file)):
        assert (read.file, read.strict, read.require) == (file, True, ("batch_invariant",))
        assert (read.allow, read.deny) == (("a", "b:rms_norm"), ("c", "*:silu_and_mul"))


def test_an_empty_allow_list_is_not_none(tmp_path: Path) -> None:
    """One allows nobody, the other everybody."""
    file = tmp_path / "policy.toml"
    file.write_text("allow = []")
    assert Settings.read_policy(file).allow == ()
    file.write_text("")
    assert Settings.read_policy(file).allow is None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.toml", None, "it cannot be read: No such file or directory. Mend the file, or its path."),
        ("policy.toml", "deny = [", "it cannot be read: "),
        ("policy.toml", "tool.vllm-ir.deny = ['a']", "key 'tool' means nothing (keys: allow, deny, require, strict)"),
        ("policy.toml", "op-priority.a = 'b'", "key 'op-priority' means nothing in a policy file, which says what may"),
        ("pyproject.toml", "[tool.other]", "it has no table [tool.vllm-ir], so that nothing would be enforced"),
        ("pyproject.toml", "tool.vllm-ir.deny = 3", "deny is 3, wanted a list"),
        (
            "policy.toml",
            "# " + "x" * LIMIT,
            f"it has more than {LIMIT} bytes. Shorten it, or name the file that was meant.",
        ),
        ("policy.toml", "a = " + "[" * 100_000, "it cannot be read: "),
        ("policy.toml", "a = " + "9" * 10_000, "it cannot be read: "),
    ],
)
def test_a_policy_file_that_cannot_be_followed(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    """Nothing is enforced by half: the error names the file."""
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    with pytest.raises(MalformedSettings) as caught:
        Settings.read_policy(file)
    assert str(caught.value).startswith(f"{file}: {said}")
    assert caught.value.file == str(file)


def test_a_policy_file_that_is_no_plain_file(tmp_path: Path) -> None:
    """A folder or a pipe is named, and nobody waits for what it may say."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for each in (tmp_path, pipe):
        with pytest.raises(MalformedSettings, match="it is no regular file"):
            Settings.read_policy(each)


def test_names_are_kept_once_without_blanks(tmp_path: Path) -> None:
    """As everywhere else."""
    (tmp_path / "vllm-ir.toml").write_text(
        "op-priority.a = [' b', 'b', 'c ']\nop-priority.d = ''\nop-priority.e = []\n"
    )
    assert Settings.read(tmp_path).op_priority == {"a": ("b", "c"), "d": (), "e": ()}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[tool.vllm_ir]\ndeny = ['a']\n", ["tool.vllm_ir"]),
        ("[tool.vllm-r]\n[vllm-ir.op-priority]\n", ["tool.vllm-r", "vllm-ir"]),
        ("[tool.vllm]\n[tool.ruff]\n[vllm-ir-x]\n", ["vllm-ir-x"]),
        ("[tool.vllm-ir]\n[tool.vllm_ir]\n", []),
    ],
)
def test_a_misspelt_table_is_doubted(tmp_path: Path, text: str, names: list[str]) -> None:
    """What an operator wrote for us and nobody reads must not be passed over; a table of others is none of ours."""
    file = tmp_path / "pyproject.toml"
    file.write_text(text)
    assert Settings.read(tmp_path).doubts == tuple(
        f"{file}: table [{name}] means nothing to vllm-ir and is ignored. Did you mean [tool.vllm-ir]?"
        for name in names
    )


def test_a_misspelt_table_of_a_policy_is_named(tmp_path: Path) -> None:
    """A policy without ours is an error anyhow."""
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.vllm_ir]\n")
    with pytest.raises(MalformedSettings, match=r"Rename \[tool.vllm_ir\], or unset VLLM_IR_POLICY\.$"):
        Settings.read_policy(file)


def test_a_doubt_about_the_file_is_a_warning_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, where the file is read."""
    (tmp_path / "pyproject.toml").write_text("[tool.vllm_ir]\n")
    monkeypatch.chdir(tmp_path)
    preferences = Preferences(Environment())
    assert preferences.settings == preferences.settings
    assert [each.getMessage().partition(" means")[0] for each in caplog.records] == [
        f"{tmp_path / 'pyproject.toml'}: table [tool.vllm_ir]"
    ]
