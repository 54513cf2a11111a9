"""What a provider's process said: cut where nobody would read on, and never a crash of its own where we ended it."""

from __future__ import annotations

import io

from vllm_ir.diagnosis import sayings


def test_a_long_line_is_cut_with_a_word() -> None:
    """In every text that a process tells, line by line; what is short, or no text, stays."""
    long = "x" * 17_000
    cut = "x" * 400 + " [cut: 16600 more characters]"
    told = {"step": "a", "result": {"reason": long, "traceback": f"first\n{long}\nlast", "parts": [long, 3, None]}}
    assert sayings.shorten(told) == {
        "step": "a",
        "result": {"reason": cut, "traceback": f"first\n{cut}\nlast", "parts": [cut, 3, None]},
    }
    assert sayings.end_of(io.BytesIO(f"before\n{long}\nlast\n".encode())) == f"before\n{cut}\nlast"


def test_the_end_of_much_output_is_kept() -> None:
    """Forty lines, fewer where they are long, and bytes that are no text do not end it."""
    many = "".join(f"line {number}\n" for number in range(1000)).encode()
    assert sayings.end_of(io.BytesIO(many)).splitlines() == [f"line {number}" for number in range(960, 1000)]
    assert len(sayings.end_of(io.BytesIO(b"y" * 399 + b"\n" + many[:0] + (b"z" * 390 + b"\n") * 50))) <= 4000
    assert sayings.end_of(io.BytesIO(b"\xff\n")) == "\ufffd"
    assert sayings.end_of(io.BytesIO(b"")) == ""


def test_a_process_that_we_ended_did_not_crash() -> None:
    """The fault handler's first line is replaced; where it said nothing, the sentence stands before the rest."""
    ours = "(vllm-ir ended it: took too long. Where it was then:)"
    said = "noise\nFatal Python error: Aborted\n\nCurrent thread"
    assert sayings.told_by_us(said, "took too long") == f"noise\n{ours}\n\nCurrent thread"
    assert sayings.told_by_us("noise", "took too long") == f"{ours}\nnoise"
