"""A lock from somewhere else: every part that does not fit is named, whatever it holds nothing of it is run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_ir.errors import MalformedLock
from vllm_ir.lock.document import Lock
from vllm_ir.lock.lock_file import to_text
from vllm_ir.lock.reading import parse_lock

DIGEST = f"sha256:{'0' * 64}"
RIGHT = f"""\
lock-version = 1
[core]
version = "0.1.0"
provider-api = ["1"]
[distributions.a]
version = "1.0"
manifest = "{DIGEST}"
digest = "{DIGEST}"
providers = ["a"]
[platforms."cuda:9.0"]
architectures = ["9.0"]
[platforms."cuda:9.0".eager]
rms_norm = [{{ provider = "a", layer = "built-in" }}]
[platforms."cuda:9.0".compiling]
"""


def test_a_right_one_is_read() -> None:
    """So what is changed below is what does not fit."""
    found = parse_lock(RIGHT.encode(), "a.lock")
    assert found.platforms["cuda:9.0"].eager["rms_norm"][0].provider == "a"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lock-version = 1\n", "", "lock-version is missing, wanted the key with a value"),
        ("lock-version = 1", "lock-version = 2", "lock-version is 2, wanted 1; a newer vllm-ir may read it"),
        ("lock-version = 1", "lock-version = true", "lock-version is True, wanted the number 1"),
        ("lock-version = 1", "lock-version = '1'", "lock-version is text '1', wanted the number 1, without quotes."),
        ("lock-version = 1", "lock-version = 0", "lock-version is 0, wanted the number 1"),
        ("lock-version = 1", "lock-version = 1\nnew = 1", "new is an unknown key, wanted one of 'lock-version'"),
        ("[core]", "[cor]", "cor is an unknown key, wanted one of"),
        ('"0.1.0"', "7", "core.version is int 7, wanted a version"),
        ('"0.1.0"', '"; rm -rf /"', "core.version is str '; rm -rf /', wanted a version"),
        ('["1"]', '"1"', "core.provider-api is str '1', wanted a list"),
        ("distributions.a]", 'distributions."../../x"]', "distributions is a table with '../../x', wanted names of"),
        ("distributions.a]", "distributions.A_b]", "distributions is a table with 'A_b', wanted names of"),
        ('version = "1.0"', 'version = "1.0\\nb==2"', "distributions.a.version is str '1.0\\nb==2', wanted a version"),
        (f'digest = "{DIGEST}"', "", "with neither or both of 'digest' and 'editable', wanted one of the two"),
        (f'digest = "{DIGEST}"', "editable = false", "distributions.a.editable is False, wanted true"),
        (f'digest = "{DIGEST}"', 'digest = "md5:00"', "distributions.a.digest is str 'md5:00', wanted a digest"),
        ('["a"]', '["a b"]', "distributions.a.providers.[0] is str 'a b', wanted a provider's name"),
        ('["a"]', "[[]]", "distributions.a.providers.[0] is list [], wanted a provider's name"),
        ('["9.0"]', '["8.0"]', "is about 'cuda:8.0' inside, wanted about what its name says"),
        ('"cuda:9.0".eager', '"cuda:9.0".eagre', "eagre is an unknown key, wanted one of"),
        ('layer = "built-in"', 'layer = "\\u001b[2J"', "wanted a layer in words"),
        (', layer = "built-in"', "", "rms_norm.[0].layer is missing"),
        ("rms_norm = [", '"rms norm" = [', "eager is a table with 'rms norm', wanted names of an op's name"),
        ("rms_norm = [{", "rms_norm = [7, {", "rms_norm.[0] is int 7, wanted a table"),
        ("[core]", "[core", "a.lock: the file is not readable"),
        ("[core]", "x = " + "[" * 5000 + "\n[core]", "a.lock: the file is not readable"),
        ("lock-version = 1", "lock-version = " + "9" * 5000, "a.lock: the file is not readable"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(old: str, new: str, said: str) -> None:
    """With its key, what was got and what was wanted."""
    assert RIGHT.count(old) >= 1
    with pytest.raises(MalformedLock) as caught:
        parse_lock(RIGHT.replace(old, new, 1).encode(), "a.lock")
    assert said in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


def test_bytes_that_are_no_text_are_no_lock() -> None:
    """Only UTF-8 is."""
    with pytest.raises(MalformedLock, match="the file is not readable"):
        parse_lock(RIGHT.encode() + b"\xff", "a.lock")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(RIGHT) - 1), st.integers(0, 40), st.text(max_size=12))
def test_a_damaged_one_is_read_or_refused(start: int, length: int, put: str) -> None:
    """Never anything but a lock or the error for one; what is read can be written."""
    text = RIGHT[:start] + put + RIGHT[start + length :]
    try:
        found = parse_lock(text.encode(errors="replace"), "a.lock")
    except MalformedLock as error:
        assert error.file == "a.lock"  # noqa: PT017 - either is right
    else:
        assert isinstance(found, Lock)
        assert parse_lock(to_text(found).encode(), "a.lock") == found
