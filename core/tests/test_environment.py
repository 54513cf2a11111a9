"""The variables: what each may say, which are unknown, and that they are read once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from vllm_ir import log
from vllm_ir.environment import KNOWN, Environment, split_names
from vllm_ir.errors import MalformedVariable
from vllm_ir.preferences import Preferences

SWITCHES = {
    "VLLM_IR_STRICT": "strict",
    "VLLM_IR_COUNTERS": "counters",
    "VLLM_IR_TRACE": "trace",
    "VLLM_BATCH_INVARIANT": "batch_invariant",
}


def test_nothing_is_set() -> None:
    """Every default promises least."""
    read = Environment.read({"HOME": "/home/someone"})
    assert read == Environment(cache=Path("/home/someone/.cache/vllm-ir"))
    assert read.providers is None
    assert [getattr(read, field) for field in SWITCHES.values()] == [False] * 4


@pytest.mark.parametrize("variable", SWITCHES)
@pytest.mark.parametrize(
    ("word", "on"),
    [
        ("1", True),
        ("true", True),
        ("YES", True),
        (" on ", True),
        ("0", False),
        ("", False),
        ("No", False),
        ("off", False),
    ],
)
def test_the_words_of_a_switch(variable: str, word: str, on: bool) -> None:
    """In any case, with blanks around."""
    assert getattr(Environment.read({variable: word}), SWITCHES[variable]) is on


@pytest.mark.parametrize("variable", SWITCHES)
@pytest.mark.parametrize("word", ["2", "maybe", "-1", "y e s"])
def test_a_switch_that_is_neither(variable: str, word: str) -> None:
    """A typo is an error, not off."""
    with pytest.raises(MalformedVariable) as caught:
        Environment.read({variable: word})
    assert str(caught.value) == f"{variable}={word!r} cannot be read, wanted 1 or 0."
    assert (caught.value.variable, caught.value.value, caught.value.wanted) == (variable, word, "1 or 0")


@pytest.mark.parametrize(
    ("text", "names"),
    [("a,b", ("a", "b")), (" a , a,,b ", ("a", "b")), ("", ()), (",", ()), ("*", ("*",))],
)
def test_a_list_of_names(text: str, names: tuple[str, ...]) -> None:
    """The allow list and the deny list are read alike; an empty allow list allows none, an unset one all."""
    assert split_names(text) == names
    read = Environment.read({"VLLM_IR_PROVIDERS": text, "VLLM_IR_PROVIDERS_DISABLED": text})
    assert (read.providers, read.disabled) == (names, names)


@pytest.mark.parametrize("variable", ["op_priority", "lock", "policy"])
def test_texts_are_kept_as_written(variable: str) -> None:
    """What they mean belongs to others."""
    name = f"VLLM_IR_{variable.upper()}"
    assert getattr(Environment.read({name: " a=b "}), variable) == " a=b "
    assert getattr(Environment.read({}), variable) is None


def test_an_empty_list_is_as_good_as_unset() -> None:
    """It asks for nothing."""
    assert Environment.read({"VLLM_IR_OP_PRIORITY": ""}).op_priority is None


@pytest.mark.parametrize("variable", ["VLLM_IR_LOCK", "VLLM_IR_POLICY"])
@pytest.mark.parametrize("value", ["", " "])
def test_a_file_without_a_name_lifts_nothing(variable: str, value: str) -> None:
    """A template whose own variable is unset must not end the hold of a policy or a lock without a word."""
    with pytest.raises(MalformedVariable) as caught:
        Environment.read({variable: value})
    wanted = "the path of a file; unset it where none is meant"
    assert str(caught.value) == f"{variable}={value!r} cannot be read, wanted {wanted}."


@pytest.mark.parametrize(
    ("variables", "level"),
    [
        ({}, None),
        ({"VLLM_IR_LOG": "debug"}, "DEBUG"),
        ({"VLLM_IR_LOG": " Info "}, "INFO"),
        ({"VLLM_IR_LOG": ""}, None),
        ({"VLLM_LOGGING_LEVEL": "ERROR"}, "ERROR"),
        ({"VLLM_LOGGING_LEVEL": "something-of-vllm"}, None),
        ({"VLLM_IR_LOG": "WARNING", "VLLM_LOGGING_LEVEL": "DEBUG"}, "WARNING"),
    ],
)
def test_the_level_of_the_log(variables: dict[str, str], level: str | None) -> None:
    """Its own variable, else vLLM's where that says a level; otherwise the host decides."""
    assert Environment.read(variables).log == level


def test_a_level_that_is_none() -> None:
    """The names that exist are in the sentence."""
    with pytest.raises(MalformedVariable) as caught:
        Environment.read({"VLLM_IR_LOG": "loud"})
    assert str(caught.value) == (
        "VLLM_IR_LOG='loud' cannot be read, wanted one of DEBUG, INFO, WARNING, ERROR, CRITICAL."
    )


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"VLLM_IR_CACHE": "/somewhere"}, "/somewhere"),
        ({"VLLM_IR_CACHE": "/somewhere", "XDG_CACHE_HOME": "/cache"}, "/somewhere"),
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/home/a"}, "/cache/vllm-ir"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/a"}, "/home/a/.cache/vllm-ir"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/a"}, "/home/a/.cache/vllm-ir"),
        ({"VLLM_IR_CACHE": "", "HOME": "/home/a"}, "/home/a/.cache/vllm-ir"),
    ],
)
def test_the_cache_folder(variables: dict[str, str], folder: str) -> None:
    """Its own variable, else the user's cache folder as the base-directory specification finds it."""
    assert Environment.read(variables).cache == Path(folder)


def test_the_cache_folder_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password database knows the home, too, and `~` is the user's."""
    monkeypatch.setenv("HOME", "/home/b")
    assert Environment.read({}).cache == Path("/home/b/.cache/vllm-ir")
    assert Environment.read({"VLLM_IR_CACHE": "~/here"}).cache == Path("/home/b/here")


def test_unknown_variables_are_told_with_a_suggestion() -> None:
    """Only those with our prefix, in order of their names."""
    read = Environment.read({"VLLM_IR_STRICKT": "1", "VLLM_IR_ZZZZZZZZ": "", "VLLM_OTHER": "1", "VLLM_IR_TRACE": "1"})
    assert read.unknown == ("VLLM_IR_STRICKT", "VLLM_IR_ZZZZZZZZ")
    assert read.complaints() == (
        "Environment variable VLLM_IR_STRICKT means nothing to vllm-ir and is ignored. Did you mean 'VLLM_IR_STRICT'?",
        "Environment variable VLLM_IR_ZZZZZZZZ means nothing to vllm-ir and is ignored.",
    )
    assert Environment.read(dict.fromkeys(KNOWN, "0") | {"VLLM_IR_LOG": ""}).unknown == ()


def test_an_unknown_variable_warns_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The process reads its variables at the first use, and complains then only."""
    monkeypatch.setenv("VLLM_IR_STRICKT", "1")
    preferences = Preferences()
    assert caplog.records == []
    first = preferences.environment
    monkeypatch.setenv("VLLM_IR_STRICT", "1")
    assert preferences.environment is first
    assert not first.strict
    assert [record.getMessage() for record in caplog.records] == [*first.complaints()]
    assert len(caplog.records) == 1


def test_a_level_is_set_and_a_handler_added_only_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's handlers are its own."""
    alone, hosted = logging.getLogger("vllm_ir_tests.alone"), logging.getLogger("vllm_ir_tests.hosted")
    alone.propagate = hosted.propagate = False
    hosted.addHandler(logging.NullHandler())
    monkeypatch.setattr(log, "logger", alone)
    log.configure(None)
    assert (alone.level, alone.handlers) == (logging.NOTSET, [])
    log.configure("DEBUG")
    log.configure("INFO")
    assert (alone.level, len(alone.handlers)) == (logging.INFO, 1)
    monkeypatch.setattr(log, "logger", hosted)
    log.configure("ERROR")
    assert (hosted.level, len(hosted.handlers)) == (logging.ERROR, 1)


def test_a_lock_and_a_policy_are_known() -> None:
    """Both are acted on, so there is nothing to say of them."""
    told = Environment.read({"VLLM_IR_LOCK": "a.lock", "VLLM_IR_POLICY": "p.toml"})
    assert (told.lock, told.policy, told.complaints()) == ("a.lock", "p.toml", ())
