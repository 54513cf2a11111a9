"""The two variables of this host, and what vLLM is told about all that begin with VLLM_IR_."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Literal

from vllm_ir.environment import KNOWN
from vllm_ir.errors import MalformedVariable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

SWITCH: Final = "VLLM_IR_HOST"
MODE: Final = "VLLM_IR_HOST_MODE"
ADOPT: Final = "adopt"
LAYERS: Final = "layers"

Mode = Literal["adopt", "layers"]

_ON: Final = frozenset({"", "1", "true", "yes", "on"})
_OFF: Final = frozenset({"0", "false", "no", "off"})


def switched_on(variables: Mapping[str, str] | None = None) -> bool:
    """Return whether this host is to do anything; it is, unless VLLM_IR_HOST says otherwise.

    Args:
        variables: names and values; those of the process when None.

    Raises:
        MalformedVariable: the value is neither on nor off.
    """
    value = (os.environ if variables is None else variables).get(SWITCH, "")
    word = value.strip().lower()
    if word in _OFF:
        return False
    if word in _ON:
        return True
    raise MalformedVariable(variable=SWITCH, value=value, wanted="1 or 0")


def wanted_mode(variables: Mapping[str, str] | None = None) -> Mode | None:
    """Return the mode that VLLM_IR_HOST_MODE asks for, or None where it leaves that to the vLLM at hand.

    Raises:
        MalformedVariable: there is no such mode.
    """
    value = (os.environ if variables is None else variables).get(MODE, "")
    word = value.strip().lower()
    if word == ADOPT:
        return "adopt"
    if word == LAYERS:
        return "layers"
    if word in ("", "auto"):
        return None
    raise MalformedVariable(variable=MODE, value=value, wanted=f"{ADOPT}, {LAYERS} or auto")


def enter(known: MutableMapping[str, Callable[[], Any]]) -> None:
    """Add ours to the variables that vLLM knows: it warns of any other that begins with VLLM_, and may refuse to start.

    They become part of the key of its compile cache, too, as all that it knows do. So it is, also where this host is
    switched off: the switch itself is one of them.

    Args:
        known: what vLLM has, a reader by name; what is there already stays.
    """
    for name in KNOWN:
        known.setdefault(name, _reader(name))


def _reader(name: str) -> Callable[[], str | None]:
    """Return a function that reads a variable."""

    def read() -> str | None:
        """Return the variable as it is written."""
        return os.environ.get(name)

    return read
