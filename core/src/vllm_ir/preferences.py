"""What the process was told: variables, a settings file, and the lists that each layer gave last."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from vllm_ir import log, orders
from vllm_ir.environment import Environment
from vllm_ir.policy import Policy
from vllm_ir.priority import Layer, Wish, parse_text, read_providers
from vllm_ir.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_ir.landscape import Landscape

EVERY_OP: Final = "*"
"""Stands for all ops in a wish that a layer has for all of them."""


class Preferences:
    """What users asked for.

    Args:
        environment: the variables; those of the process, read at the first use, when None.
        settings: the settings file; that of the working folder, read at the first use, when None.
    """

    def __init__(self, environment: Environment | None = None, settings: Settings | None = None) -> None:
        self._environment = environment
        self._settings = settings
        self._policy: Policy | None = None
        self._wishes: dict[tuple[Layer, str], Wish] = {}
        self._lock = threading.RLock()

    @property
    def environment(self) -> Environment:
        """The environment variables.

        Raises:
            MalformedVariable: one cannot be read.
        """
        with self._lock:
            if self._environment is None:
                self._environment = Environment.read()
                # A trace that nothing shows would be none.
                log.configure("DEBUG" if self._environment.trace else self._environment.log)
                for complaint in self._environment.complaints():
                    log.logger.warning("%s", complaint)
            return self._environment

    @property
    def settings(self) -> Settings:
        """The settings file.

        Raises:
            MalformedSettings: it cannot be read.
        """
        with self._lock:
            if self._settings is None:
                self._settings = Settings.read()
                for doubt in self._settings.doubts:
                    log.logger.warning("%s", doubt)
            return self._settings

    @property
    def policy(self) -> Policy:
        """Who may run what, by the variables, the policy file and the settings file.

        Raises:
            MalformedVariable, MalformedSettings: one cannot be read.
        """
        with self._lock:
            if self._policy is None:
                self._policy = Policy.read(self.environment, self.settings)
            return self._policy

    def wishes(self, op: str, landscape: Landscape, *, compiling: bool) -> list[Wish]:
        """Return what every layer wants for an op.

        Raises:
            MalformedPriority: a list cannot be read.
        """
        found = orders.defaults(landscape, op, compiling=compiling)
        file = self.settings.file
        if op in self.settings.op_priority and file is not None:
            names = read_providers(self.settings.op_priority[op], str(file))
            found.append(Wish(Layer.FILE, names, source=file.name))
        lists = self._variable()
        if op in lists:
            found.append(Wish(Layer.ENVIRONMENT, lists[op]))
        for (layer, name), wish in self._wishes.items():
            if name == op or (name == EVERY_OP and (layer, op) not in self._wishes):
                found.append(wish)
        return found

    def named_ops(self) -> list[tuple[str, str]]:
        """Return every op that a layer names, with the layer in words."""
        named = [(op, Layer.ENVIRONMENT.label) for op in self._variable()]
        named += [(op, str(self.settings.file)) for op in self.settings.op_priority]
        return named + [
            (op, wish.source or wish.layer.label) for (_, op), wish in self._wishes.items() if op != EVERY_OP
        ]

    def put(self, op: str, wish: Wish) -> None:
        """Set what a layer wants for one op."""
        with self._lock:
            self._wishes[wish.layer, op] = wish

    def replace(self, layer: Layer, wishes: Mapping[str, Wish]) -> None:
        """Set all that a layer wants, by op, in place of all that it wanted."""
        with self._lock:
            kept = {key: wish for key, wish in self._wishes.items() if key[0] is not layer}
            self._wishes = {**kept, **{(layer, op): wish for op, wish in wishes.items()}}

    def _variable(self) -> dict[str, tuple[str, ...]]:
        """Return the lists of VLLM_IR_OP_PRIORITY."""
        text = self.environment.op_priority
        return parse_text(text, Layer.ENVIRONMENT.label) if text else {}
