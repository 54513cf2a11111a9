"""What a user reads who named a platform that is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors.base import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence


class UnknownPlatform(ConfigurationError):
    """A platform's name that names none."""

    def __init__(self, *, text: str, problem: str, known: Sequence[str]) -> None:
        self.text, self.problem, self.known = text, problem, tuple(known)
        super().__init__(
            f"Platform {text!r} {problem} (platforms: {', '.join(known)}).{did_you_mean(text, known)}"
            " Write a compute capability as cuda:9.0, an AMD architecture as rocm:gfx942.",
            text=text,
            problem=problem,
            known=tuple(known),
        )
