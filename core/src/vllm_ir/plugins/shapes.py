"""What each text in a manifest must look like; `provider.schema.json` says the same, and a test holds them together."""

from __future__ import annotations

from typing import Final

from vllm_ir.plugins.toml_reader import Shape

DTYPES: Final = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)
"""Names of torch dtypes that a manifest may list."""

_RELEASE: Final = r"[0-9]+(\.[0-9]+)*"
_SUFFIX: Final = r"((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?"
_CLAUSE: Final = rf"((>=|<=|>|<|==|!=) *{_RELEASE}{_SUFFIX}|(==|!=) *{_RELEASE}\.\*|~= *[0-9]+(\.[0-9]+)+{_SUFFIX})"

NAME: Final = Shape(r"[a-z_][a-z0-9_]*", "lower-case letters, digits and underscores, no digit first")
PASS: Final = Shape(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a graph pass, as its class or its attribute says")
PLATFORM: Final = Shape(
    r"[a-z_][a-z0-9_]*",
    "'cpu', 'cuda', 'rocm', 'xpu' or the name of a vendor's platform",
    ("cpu", "cuda", "rocm", "xpu"),
)
DTYPE: Final = Shape("|".join(DTYPES), "the name of a torch dtype", DTYPES)
CAPABILITY: Final = Shape(r"[0-9]{1,2}\.[0-9]", "a compute capability such as '9.0'")
GFX: Final = Shape(r"gfx[0-9a-f]{3,5}", "an AMD architecture such as 'gfx942'")
API: Final = Shape(r"[0-9]+", "the version of the provider API, such as '1'")
# No control characters: what a stranger's file says goes to terminals, which would obey them.
SUMMARY: Final = Shape(
    r"[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*", "one line that says what it is"
)
URL: Final = Shape(r"https?://[^\s\x00-\x1f\x7f-\x9f]+", "an address that begins with https://")
LIBRARY: Final = Shape(r"[A-Za-z_][A-Za-z0-9_]*", "the top-level name that Python imports")
DISTRIBUTION: Final = Shape(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "the name of an installable distribution")
VERSIONS: Final = Shape(rf"({_CLAUSE}( *, *{_CLAUSE})*)?", "a version range such as '>=3.4,<4', or '' for any version")
