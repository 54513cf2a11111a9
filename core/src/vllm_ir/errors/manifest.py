"""What is read when a manifest is missing, malformed, newer than this core, or at odds with the hooks."""

from __future__ import annotations

from typing import ClassVar

from vllm_ir.errors.base import ProviderError, ended


class ManifestMissing(ProviderError):
    """A distribution without the static description of its providers."""

    kind: ClassVar[str] = "manifest missing"

    def __init__(self, *, distribution: str, package: str, file: str) -> None:
        self.distribution, self.package, self.file = distribution, package, file
        super().__init__(
            f"Distribution {distribution} has no {file} in its package {package!r}."
            " The author adds it and includes it in the wheel; docs/manifest.md has an example.",
            distribution=distribution,
            package=package,
            file=file,
        )


class ManifestError(ProviderError):
    """Root of what can be wrong inside a manifest: it names the file, the key, what was got and what was wanted."""

    kind: ClassVar[str] = "manifest malformed"

    def __init__(self, *, file: str, key: str, got: str, wanted: str) -> None:
        self.file, self.key, self.got, self.wanted = file, key, got, wanted
        super().__init__(
            f"{file}: {key or 'the file'} is {got}, wanted {ended(wanted)}", file=file, key=key, got=got, wanted=wanted
        )


class ManifestNotToml(ManifestError):
    """A manifest that is no TOML, or no UTF-8."""


class ManifestWrongType(ManifestError):
    """A value of a type that its key does not take."""


class ManifestWrongValue(ManifestError):
    """A value of the right type that its key does not take."""


class ManifestMissingKey(ManifestError):
    """A key that every manifest has is not there."""


class ManifestUnknownKey(ManifestError):
    """A key that no manifest has: a misspelling, mostly."""


class ManifestContradiction(ManifestError):
    """Two parts of a manifest that cannot both hold; the JSON Schema cannot see these."""


class ManifestNewer(ManifestError):
    """A manifest of a schema that this vllm-ir does not know yet."""

    kind: ClassVar[str] = "manifest newer"


class ManifestDisagrees(ProviderError):
    """A manifest that says one thing while the hooks do another."""

    kind: ClassVar[str] = "manifest disagreeing"

    def __init__(self, *, distribution: str, what: str, manifest: str, hooks: str) -> None:
        self.distribution, self.what, self.manifest, self.hooks = distribution, what, manifest, hooks
        super().__init__(
            f"Distribution {distribution}: {what}: the manifest says {manifest}, the hooks say {hooks}."
            " The manifest is the source; the author makes the two agree.",
            distribution=distribution,
            what=what,
            manifest=manifest,
            hooks=hooks,
        )
