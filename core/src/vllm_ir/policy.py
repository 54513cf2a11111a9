"""Who may run what: the operator's variables and files as one predicate, which loading, listing and dispatch ask.

Every source can only narrow what the others leave: lists that deny add up, a provider has to be in every list that
allows, and `strict` and `require` hold as soon as one asks for them. `native` is the meaning of every op and stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import DeniedByPolicy, MalformedSettings, MalformedVariable
from vllm_ir.names import NATIVE, RESERVED, normalise
from vllm_ir.settings import BATCH_INVARIANT, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_ir.environment import Environment

ALLOW: Final = "VLLM_IR_PROVIDERS"
"""Variable with an allow list."""

DENY: Final = "VLLM_IR_PROVIDERS_DISABLED"
"""Variable with a deny list."""

ALL: Final = "*"
"""What stands for every provider in any list."""

_RULE: Final = re.compile(r"(\*|\w(?:[\w.-]*\w)?)(?:\s*:\s*([a-z_][a-z0-9_]*))?", re.ASCII)
_WANTED: Final = "names of providers or distributions apart by commas, each alone or with an op: a_provider:rms_norm"


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of a list.

    Attributes:
        text: as written.
        name: of a provider or a distribution, as installers compare it, or `*` for all.
        op: the one op that is meant; None for all.
    """

    text: str
    name: str
    op: str | None

    @classmethod
    def read(cls, text: str) -> Rule | None:
        """Return the rule that a text is: `provider`, `provider:op` or `*:op`; None where it is none."""
        found = _RULE.fullmatch(text.strip())
        return cls(text, normalise(found[1]), found[2]) if found else None

    def matches(self, names: Iterable[str]) -> bool:
        """Tell whether it is about one of some names, which are normalised."""
        return self.name == ALL or self.name in names


@dataclass(frozen=True, slots=True)
class Source:
    """What one place says: a file, or the variables.

    Attributes:
        file: the file; None for the variables.
        allow: the allow list; None allows all, an empty one none.
        deny: the deny list.
        strict: whether a refusal raises where it would fall back.
        batch_invariant: whether only implementations declared batch-invariant are admitted.
    """

    file: str | None = None
    allow: tuple[Rule, ...] | None = None
    deny: tuple[Rule, ...] = ()
    strict: bool = False
    batch_invariant: bool = False

    @classmethod
    def of_variables(cls, environment: Environment) -> Source:
        """Return what the variables say.

        Raises:
            MalformedVariable: an entry of a list cannot be read.
        """
        allow = environment.providers
        return cls(
            allow=None if allow is None else tuple(_of_variable(ALLOW, text) for text in allow),
            deny=tuple(_of_variable(DENY, text) for text in environment.disabled),
            strict=environment.strict,
            batch_invariant=environment.batch_invariant,
        )

    @classmethod
    def of_file(cls, settings: Settings) -> Source:
        """Return what a file says.

        Raises:
            MalformedSettings: an entry of a list cannot be read, or denies `native` or `unfused`.
        """
        file = str(settings.file)
        deny = tuple(_of_file(file, "deny", text) for text in settings.deny)
        for rule in deny:
            if rule.name in RESERVED:
                what = "what every op means" if rule.name == NATIVE else "an op's parts, each under its own rules,"
                raise MalformedSettings(
                    file=file,
                    problem=f"deny has {rule.text!r}, and {rule.name} is {what} and always stays",
                    fix="Take it out; strict = true raises where a provider that was named would hand a call on.",
                )
        return cls(
            file=file,
            allow=None if settings.allow is None else tuple(_of_file(file, "allow", text) for text in settings.allow),
            deny=deny,
            strict=settings.strict,
            batch_invariant=BATCH_INVARIANT in settings.require,
        )

    @property
    def rules(self) -> tuple[tuple[str, Rule], ...]:
        """Every entry with the list that it is in, in words."""
        places = ("allow", "deny") if self.file else (ALLOW, DENY)
        where = f" in {self.file}" if self.file else ""
        return tuple(
            (place + where, rule)
            for place, listed in zip(places, (self.allow or (), self.deny), strict=True)
            for rule in listed
        )

    def refuse(self, provider: str, distribution: str | None, op: str | None) -> DeniedByPolicy | None:
        """Return why a provider may not run an op, or may not load where none is asked about; None where it may."""
        if not self.deny and self.allow is None:
            return None
        names = {normalise(name) for name in (provider, distribution) if name}
        if any(rule.matches(names) and rule.op in (None, op) for rule in self.deny):
            return self._refusal(provider, distribution, op, self.deny, allows=False)
        if self.allow is None:
            return None
        if any(rule.matches(names) and (op is None or rule.op in (None, op)) for rule in self.allow):
            return None
        return self._refusal(provider, distribution, op, self.allow, allows=True)

    def _refusal(
        self, provider: str, distribution: str | None, op: str | None, rules: tuple[Rule, ...], *, allows: bool
    ) -> DeniedByPolicy:
        """Return the error that says which list it was."""
        keys = ("deny", "allow") if self.file else (DENY, ALLOW)
        return DeniedByPolicy(
            distribution=distribution,
            provider=provider,
            op=op,
            variable=keys[allows],
            value=",".join(rule.text for rule in rules),
            file=self.file,
            allows=allows,
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """What all sources leave.

    Attributes:
        sources: the policy file, the settings file and the variables, as far as there are any.
    """

    sources: tuple[Source, ...] = ()

    @classmethod
    def read(cls, environment: Environment, settings: Settings | None = None) -> Policy:
        """Return what the variables, the policy file that they name and the settings file say.

        Args:
            environment: the variables.
            settings: the settings file; that of the working folder when None.

        Raises:
            MalformedSettings: a file cannot be read, something in it means nothing, or a policy in it is passed over.
            MalformedVariable: a list of a variable cannot be read.
        """
        settings = Settings.read() if settings is None else settings
        sources = [] if settings.file is None else [Source.of_file(settings)]
        file = Path(environment.policy).expanduser() if environment.policy else None
        if settings.passed_over is not None and settings.lost and not (file and _same(file, settings.passed_over)):
            raise MalformedSettings(
                file=str(settings.passed_over),
                problem=f"[tool.vllm-ir] has {', '.join(settings.lost)} and would hold nobody to it, because"
                f" {settings.file} goes before it",
                fix="Move it there, or name this file in VLLM_IR_POLICY.",
            )
        if file is not None and (settings.file is None or not _same(file, settings.file)):
            sources.insert(0, Source.of_file(Settings.read_policy(file)))
        return cls((*sources, Source.of_variables(environment)))

    @property
    def strict(self) -> bool:
        """Whether a refusal raises where it would fall back."""
        return any(source.strict for source in self.sources)

    @property
    def batch_invariant(self) -> bool:
        """Whether only implementations declared batch-invariant are admitted."""
        return any(source.batch_invariant for source in self.sources)

    @property
    def files(self) -> tuple[str, ...]:
        """The files among the sources that say anything of who may run."""
        return tuple(source.file for source in self.sources if source.file and source != Source(source.file))

    def refuse(self, provider: str, distribution: str | None, op: str | None = None) -> DeniedByPolicy | None:
        """Return why a provider may not run an op, or None where it may; `native` always may, and so may an op's parts.

        Args:
            provider: its name.
            distribution: the distribution that brings it; None where a program registered it itself.
            op: the op; None to ask whether the provider may load at all, for any op.
        """
        if provider in RESERVED:
            return None
        refusals = (source.refuse(provider, distribution, op) for source in self.sources)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def refuse_variant(self, *, batch_invariant: bool) -> str | None:
        """Return why an implementation is not admitted that is declared so, or None where it is."""
        if batch_invariant:
            return None
        for source in self.sources:
            if source.batch_invariant:
                asker = f'require = ["{BATCH_INVARIANT}"] in {source.file}' if source.file else "VLLM_BATCH_INVARIANT=1"
                return f"it is not declared batch-invariant, which {asker} asks for"
        return None

    def denies(self, distribution: str) -> str | None:
        """Return the list that denies a distribution by its own name, in words, or None."""
        name = normalise(distribution)
        for source in self.sources:
            if any(rule.name == name and rule.op is None for rule in source.deny):
                return f"deny in {source.file}" if source.file else DENY
        return None


def _of_variable(variable: str, text: str) -> Rule:
    """Return one entry of a variable's list."""
    rule = Rule.read(text)
    if rule is None:
        raise MalformedVariable(variable=variable, value=text, wanted=_WANTED)
    return rule


def _of_file(file: str, key: str, text: str) -> Rule:
    """Return one entry of a file's list."""
    rule = Rule.read(text)
    if rule is None:
        fix = f'Write {key} = ["a_provider"], or with one op ["a_provider:rms_norm"].'
        raise MalformedSettings(file=file, problem=f"{key} has {text!r}, which names no provider", fix=fix)
    return rule


def _same(one: Path, other: Path) -> bool:
    """Tell whether two paths are one file."""
    try:
        return one.samefile(other)
    except OSError:
        return False
