"""Reading a manifest: what is right becomes values, what is wrong an error with file, key, got and wanted."""

from __future__ import annotations

import hashlib
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vllm_ir import errors
from vllm_ir.plugins.manifest_file import read_manifest

if TYPE_CHECKING:
    from vllm_ir.plugins.manifest import Manifest

ROOT = Path(__file__).resolve().parents[3]

START = 'schema = 1\nprovider-api = "1"\nsummary = "x"\n'
PROVIDER = START + "[providers.p]\nplatforms = { cpu = {} }\nops = { rms_norm = {} }\n"


def read(text: str) -> Manifest:
    """Return the manifest that a text is."""
    return read_manifest(text.encode(), "made.toml")


def page_example() -> str:
    """Return the full example of the page on manifests."""
    page = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    found = re.search(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_example_of_the_page_is_read_in_full() -> None:
    """Every key of the documentation means what the documentation says."""
    text = page_example()
    manifest = read(text)
    assert (manifest.rank, manifest.adds_ops, manifest.platform) == (10, ("scaled_rms_norm",), None)
    assert manifest.adds_passes == ("FuseScaledNorm",)
    assert manifest.summary.startswith("Fast normalisation")
    assert manifest.url == "https://example.com/fast-norms"
    assert manifest.digest == hashlib.sha256(text.encode()).hexdigest()
    provider = manifest.providers["fast_norms"]
    assert list(map(str, provider.platforms.values())) == ["cuda >=8.0 <=12.1", "rocm (gfx942, gfx950)"]
    assert [(each.library, each.versions, each.distributions) for each in provider.requires] == [
        ("triton", ">=3.4,<4", ("triton",)),
        ("cupy", ">=13", ("cupy-cuda13x", "cupy-cuda12x", "cupy")),
    ]
    fused = provider.ops["fused_add_rms_norm"]
    assert (fused.inplace, fused.batch_invariant, fused.dtypes) == (True, False, ("bfloat16",))
    assert provider.ops["scaled_rms_norm"].batch_invariant
    assert provider.dtypes_of("rms_norm") == ("float16", "bfloat16")
    assert provider.dtypes_of("fused_add_rms_norm") == ("bfloat16",)
    assert str(provider.platforms_of("fused_add_rms_norm")["cuda"]) == "cuda >=9.0"
    assert provider.defaults.of(compiling=False) == {"rms_norm": ("cuda", "rocm"), "fused_add_rms_norm": ("cuda",)}
    assert provider.defaults.of(compiling=True) == {"rms_norm": ("rocm",)}
    assert manifest.expects["other_norms"].of(compiling=False) == {"rms_norm": ("xpu",)}
    assert manifest.expects["other_norms"].of(compiling=True) == {}


def test_the_commented_lines_of_the_page_are_right_too() -> None:
    """What a reader may uncomment is read as well."""
    text = re.sub(r"^# ?(?=(platform|defaults-at-run-time|cpu|xpu|npu) = )", "", page_example(), flags=re.MULTILINE)
    manifest = read(text)
    assert (manifest.platform, manifest.defaults_at_run_time) == ("npu", True)
    assert {"cpu", "xpu", "npu"} <= set(manifest.providers["fast_norms"].platforms)


def test_the_least_manifest_has_the_defaults() -> None:
    """A distribution may bring nothing but, say, ops; what it does not say is as the page says."""
    manifest = read(START)
    assert (manifest.rank, manifest.url, manifest.adds_ops, manifest.platform) == (0, "", (), None)
    assert manifest.adds_passes == ()
    assert (manifest.defaults_at_run_time, dict(manifest.providers), dict(manifest.expects)) == (False, {}, {})


def test_an_op_inherits_the_flags_of_its_provider() -> None:
    """A flag is said once for all ops, and otherwise where an op differs."""
    provider = read(
        START + "[providers.p]\nplatforms = { cpu = {} }\ninplace = true\nbatch-invariant = true\n"
        "ops = { a = {}, b = { inplace = false } }\n"
    ).providers["p"]
    assert [(op.inplace, op.batch_invariant) for op in provider.ops.values()] == [(True, True), (False, True)]


WRONG = [
    ("not toml", "schema = = 1", errors.ManifestNotToml, "", "not readable"),
    ("schema missing", 'provider-api = "1"\nsummary = "x"', errors.ManifestMissingKey, "schema", "missing"),
    ("schema newer", "schema = 2\nbrand-new = true", errors.ManifestNewer, "schema", "2"),
    ("schema older", "schema = 0", errors.ManifestWrongValue, "schema", "0"),
    ("schema a text", 'schema = "1"', errors.ManifestWrongType, "schema", "str '1'"),
    ("api a number", "schema = 1\nprovider-api = 1\nsummary = 'x'", errors.ManifestWrongType, "provider-api", "int 1"),
    ("summary blank", 'schema = 1\nprovider-api = "1"\nsummary = " "', errors.ManifestWrongValue, "summary", "' '"),
    ("unknown key", START + "sumary = 'x'", errors.ManifestUnknownKey, "sumary", "Did you mean 'summary'?"),
    ("rank a text", START + "rank = '1'", errors.ManifestWrongType, "rank", "str '1'"),
    ("rank a flag", START + "rank = true", errors.ManifestWrongType, "rank", "bool True"),
    ("rank broken", START + "rank = 1.5", errors.ManifestWrongType, "rank", "float 1.5"),
    ("url", START + "url = 'example.com'", errors.ManifestWrongValue, "url", "'example.com'"),
    ("ops empty", START + "adds-ops = []", errors.ManifestWrongValue, "adds-ops", "empty"),
    ("ops twice", START + "adds-ops = ['a', 'a']", errors.ManifestWrongValue, "adds-ops", "'a' twice"),
    ("ops no list", START + "adds-ops = 'a'", errors.ManifestWrongType, "adds-ops", "str 'a'"),
    ("op's name", START + "adds-ops = ['A']", errors.ManifestWrongValue, "adds-ops[0]", "'A'"),
    ("providers", START + "providers = 1", errors.ManifestWrongType, "providers", "int 1"),
    ("provider's name", START + "[providers.A-b]", errors.ManifestWrongValue, "providers.A-b", "'A-b'"),
    ("provider empty", START + "[providers.p]", errors.ManifestMissingKey, "providers.p.platforms", "missing"),
    ("flag", PROVIDER + "inplace = 1", errors.ManifestWrongType, "providers.p.inplace", "int 1"),
    ("dtype", PROVIDER + "dtypes = ['bf16']", errors.ManifestWrongValue, "providers.p.dtypes[0]", "bfloat16"),
    ("default", PROVIDER + "default.both = {}", errors.ManifestUnknownKey, "providers.p.default.both", "eager"),
    ("expects", START + "expects.q.both = {}", errors.ManifestUnknownKey, "expects.q.both", "eager"),
    ("expects whom", START + "expects.A-b = {}", errors.ManifestWrongValue, "expects.A-b", "'A-b'"),
    ("expects where", START + "expects.q.eager.a = []", errors.ManifestWrongValue, "expects.q.eager.a", "empty"),
    ("range", PROVIDER + "requires.a = '~=3'", errors.ManifestWrongValue, "providers.p.requires.a", "'~=3'"),
    (
        "library",
        PROVIDER + "requires.'a.b' = ''",
        errors.ManifestWrongValue,
        "providers.p.requires.a.b",
        "top-level name",
    ),
    (
        "no platform",
        START + "[providers.p]\nplatforms = {}\nops = { a = {} }",
        errors.ManifestWrongValue,
        "providers.p.platforms",
        "empty",
    ),
    (
        "no op",
        START + "[providers.p]\nplatforms = { cpu = {} }\nops = {}",
        errors.ManifestWrongValue,
        "providers.p.ops",
        "empty",
    ),
    (
        "capability a number",
        START + "[providers.p]\nplatforms = { cuda = { minimum = 9.0 } }\nops = { a = {} }",
        errors.ManifestWrongType,
        "providers.p.platforms.cuda.minimum",
        "float 9.0",
    ),
    (
        "capability",
        START + "[providers.p]\nplatforms = { cuda = { minimum = 'sm_90' } }\nops = { a = {} }",
        errors.ManifestWrongValue,
        "providers.p.platforms.cuda.minimum",
        "'sm_90'",
    ),
    (
        "gfx on CUDA",
        START + "[providers.p]\nplatforms = { cuda = { gfx = ['gfx942'] } }\nops = { a = {} }",
        errors.ManifestUnknownKey,
        "providers.p.platforms.cuda.gfx",
        "'minimum', 'maximum'",
    ),
    (
        "key of the CPU",
        START + "[providers.p]\nplatforms = { cpu = { minimum = '1.0' } }\nops = { a = {} }",
        errors.ManifestUnknownKey,
        "providers.p.platforms.cpu.minimum",
        "nothing here",
    ),
    (
        "gfx",
        START + "[providers.p]\nplatforms = { rocm = { gfx = ['942'] } }\nops = { a = {} }",
        errors.ManifestWrongValue,
        "providers.p.platforms.rocm.gfx[0]",
        "'942'",
    ),
]


@pytest.mark.parametrize(("text", "kind", "key", "said"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_is_wrong_is_named(text: str, kind: type[errors.ManifestError], key: str, said: str) -> None:
    """Each mistake is its own class, and the sentence has the file, the key, what was got and what was wanted."""
    with pytest.raises(errors.ManifestError) as caught:
        read(text)
    error = caught.value
    assert type(error) is kind
    assert (error.file, error.key) == ("made.toml", key)
    assert said in str(error)
    assert str(error).startswith("made.toml: ")
    assert "wanted" in str(error)
    assert error.kind == ("manifest newer" if kind is errors.ManifestNewer else "manifest malformed")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes


CONTRADICTIONS = [
    (
        START + "[providers.p]\nplatforms = { cuda = { minimum = '9.0', maximum = '8.9' } }\nops = { a = {} }",
        "providers.p.platforms.cuda",
    ),
    (PROVIDER + "[providers.p.ops.x]\nplatforms = { cuda = {} }", "providers.p.ops.x.platforms"),
    (PROVIDER + "dtypes = ['float16']\n[providers.p.ops.x]\ndtypes = ['float32']", "providers.p.ops.x.dtypes"),
    (PROVIDER + "default.eager.silu = ['cpu']", "providers.p.default.eager"),
    (PROVIDER + "default.compiling.rms_norm = ['cuda']", "providers.p.default.compiling.rms_norm"),
    (PROVIDER.replace("[providers.p]", "[providers.native]"), "providers.native"),
    (PROVIDER.replace("[providers.p]", "[providers.unfused]"), "providers.unfused"),
    (START + "platform = 'cuda'", "platform"),
    (PROVIDER + "[expects.p]", "expects.p"),
    (START + "[expects.native]", "expects.native"),
]


@pytest.mark.parametrize(("text", "key"), CONTRADICTIONS)
def test_parts_that_cannot_both_hold_are_named(text: str, key: str) -> None:
    """What no schema can see is still an error of its own."""
    text = text.replace("ops = { rms_norm = {} }\n", "ops.rms_norm = {}\n")
    with pytest.raises(errors.ManifestContradiction) as caught:
        read(text)
    assert caught.value.key == key


def test_only_the_core_may_bring_native() -> None:
    """The core's own manifest is read with nothing reserved."""
    text = PROVIDER.replace("[providers.p]", "[providers.native]").encode()
    assert list(read_manifest(text, "made.toml", reserved=()).providers) == ["native"]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"summary = '\xe9'", b"a = " + b"[" * 100_000])
def test_bytes_that_are_no_toml_are_an_error_of_their_own(content: bytes) -> None:
    """Neither another encoding nor absurd nesting comes out as a foreign exception."""
    with pytest.raises(errors.ManifestNotToml, match="wanted TOML in UTF-8"):
        read_manifest(content, "made.toml")


def test_reading_needs_no_torch_and_no_packaging() -> None:
    """The reader itself has loaded neither into a process that has only read."""
    code = (
        "import sys; from vllm_ir.plugins.manifest_file import read_manifest\n"
        f"read_manifest({page_example().encode()!r}, 'made.toml')\n"
        "print(sorted({'torch', 'packaging', 'pluggy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_missing_key_says_where_one_is_shown() -> None:
    """And a misspelt one ends with the question alone."""
    with pytest.raises(errors.ManifestMissingKey) as missing:
        read_manifest((START + "[providers.p]").encode(), "made.toml")
    assert str(missing.value) == (
        "made.toml: providers.p.platforms is missing, wanted the key with a value, as docs/manifest.md shows it."
    )
    with pytest.raises(errors.ManifestUnknownKey, match=r"Did you mean 'schema'\?$"):
        read_manifest(b"schem = 1", "made.toml")
