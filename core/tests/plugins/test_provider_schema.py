"""The JSON Schema and the reader say the same: over many files, right, wrong and nearly right."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema, which this interpreter has not")

from vllm_ir.errors import ManifestError  # noqa: E402 - after the check for jsonschema
from vllm_ir.plugins import shapes  # noqa: E402
from vllm_ir.plugins.manifest import Manifest, Need, ProviderManifest  # noqa: E402
from vllm_ir.plugins.manifest_file import parse_manifest  # noqa: E402
from vllm_ir.plugins.toml_reader import Cursor, Shape  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "core/src/vllm_ir/plugins/provider.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

NAMES = st.sampled_from(["rms_norm", "silu_and_mul", "p", "cpu", "cuda", "rocm", "npu", "_x1"])
DTYPES = st.sampled_from(shapes.DTYPES)
CAPABILITIES = st.from_regex(re.compile(shapes.CAPABILITY.pattern, re.ASCII), fullmatch=True)
VERSIONS = st.sampled_from(["", ">=3.4,<4", "~=1.2", "==1.*", "!=2.0rc1", "> 1 , < 2.post1", ">=1.0.dev3"])


def table(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return tables with any of some keys; an underscore stands for a hyphen."""
    return st.fixed_dictionaries({}, optional={key.replace("_", "-"): value for key, value in optional.items()})


def listed(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Return lists without repetition, not empty."""
    return st.lists(items, min_size=1, max_size=3, unique=True)


PLATFORMS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.just({}),
        "cuda": table(minimum=CAPABILITIES, maximum=CAPABILITIES),
        "rocm": table(gfx=listed(st.sampled_from(["gfx942", "gfx90a", "gfx1201"]))),
        "npu": st.just({}),
    },
)
OPS = st.dictionaries(
    NAMES,
    table(
        platforms=PLATFORMS,
        dtypes=listed(DTYPES),
        inplace=st.booleans(),
        batch_invariant=st.booleans(),
        kernels=st.sampled_from(["another's where it is there", "a"]),
    ),
    max_size=2,
)
DEFAULT = st.dictionaries(NAMES, listed(NAMES), max_size=2)
REQUIREMENT = VERSIONS | table(version=VERSIONS, distributions=listed(st.sampled_from(["cupy-cuda13x", "cupy", "a.b"])))
PROVIDER = table(
    platforms=PLATFORMS,
    ops=OPS,
    dtypes=listed(DTYPES),
    inplace=st.booleans(),
    batch_invariant=st.booleans(),
    requires=st.dictionaries(st.sampled_from(["triton", "cupy", "_a"]), REQUIREMENT, max_size=2),
    default=table(eager=DEFAULT, compiling=DEFAULT),
)
NEARLY_RIGHT = st.fixed_dictionaries(
    {"schema": st.just(1), "provider-api": st.sampled_from(["1", "2"]), "summary": st.sampled_from(["a", "a b\u00e9"])},
    optional={
        "url": st.sampled_from(["https://a.b/c", "http://x"]),
        "rank": st.integers(-5, 5) | st.just(2.0),
        "adds-ops": listed(NAMES),
        "adds-passes": listed(st.sampled_from(["Fuse", "fuse_2"])),
        "platform": st.sampled_from(["npu", "_x"]),
        "defaults-at-run-time": st.booleans(),
        "expects": st.dictionaries(NAMES, table(eager=DEFAULT, compiling=DEFAULT), max_size=2),
        "providers": st.dictionaries(NAMES, PROVIDER, max_size=2),
    },
)
# Copied because the file they get into is changed again, and hypothesis hands out the same list or table each time.
SCALARS = st.one_of(
    st.sampled_from(
        [
            "",
            "\n",
            "cpu\n",
            "9.0\n",
            "Cpu",
            "9",
            "9.00",
            ">=1,",
            "~=1",
            "1\n",
            "https://\n",
            " ",
            "native",
            "bf16",
            "gfx",
            "\u0661",
        ]
    ),
    st.text(max_size=4),
    st.integers(-2, 3),
    st.booleans(),
    st.sampled_from([0.5, 1.0, float("inf"), float("nan")]),
    st.just([]),
    st.just({}),
    st.just([1]),
    st.just({"a": 1}),
).map(copy.deepcopy)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*way, key)
        yield from places(inner, (*way, key))


@st.composite
def spoilt(draw: st.DrawFn) -> dict[str, Any]:
    """Return a file that is nearly right, then changed in up to two places: other values, more keys, fewer keys."""
    document = copy.deepcopy(draw(NEARLY_RIGHT))
    for _ in range(draw(st.integers(0, 2))):
        ways = list(places(document))
        if not ways:
            break
        way = draw(st.sampled_from(ways))
        holder: Any = document
        for key in way[:-1]:
            holder = holder[key]
        action = draw(st.sampled_from(["replace", "remove", "add", "repeat"]))
        if action == "replace":
            holder[way[-1]] = draw(SCALARS)
        elif action == "remove" or not isinstance(holder, (dict, list)):
            del holder[way[-1]]
        elif isinstance(holder, dict):
            holder[draw(st.sampled_from(["a", "A b", "x\n", "minimum", "gfx", "inplace", "cpu", "version"]))] = draw(
                SCALARS
            )
        else:
            holder.append(copy.deepcopy(holder[-1]) if action == "repeat" else draw(SCALARS))
    return document


def reader_accepts(document: Any) -> bool:
    """Tell whether the reader accepts the form of a file; contradictions between its parts are no matter of form."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Need, ProviderManifest, Manifest):
            patch.setattr(kind, "__post_init__", lambda _self: None)
        try:
            parse_manifest(Cursor("made.toml", document))
        except ManifestError:
            return False
    return True


@given(spoilt())
@settings(max_examples=400, deadline=None)
@example({"schema": 1, "provider-api": "1", "summary": "a", "rank": 1.0})
@example({"schema": True, "provider-api": "1", "summary": "a"})
@example({"schema": 1.0, "provider-api": "1", "summary": "a"})
@example({"schema": 1, "provider-api": "1\n", "summary": "a"})
@example({"schema": 2})
@example([])
def test_reader_and_schema_give_the_same_verdict(document: Any) -> None:
    """A file is right for both or for neither."""
    assert reader_accepts(document) == VALIDATOR.is_valid(document), document


@given(NEARLY_RIGHT)
@settings(max_examples=50, deadline=None)
def test_the_generator_reaches_right_files(document: dict[str, Any]) -> None:
    """Without its providers every generated file is right, so the comparison above sees both verdicts."""
    assert reader_accepts({key: value for key, value in document.items() if key != "providers"})


SHAPES = {name: shape for name, shape in vars(shapes).items() if isinstance(shape, Shape)}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_the_reader_is_in_the_schema(name: str) -> None:
    """The patterns are the same text, so neither can drift."""
    text = json.dumps(SCHEMA)
    if name == "DTYPE":
        assert SCHEMA["$defs"]["dtypes"]["items"]["enum"] == list(shapes.DTYPES)
    else:
        assert json.dumps(f"^(?:{SHAPES[name].pattern})$(?!\\n)") in text


@given(st.from_regex(re.compile(shapes.VERSIONS.pattern, re.ASCII), fullmatch=True))
@settings(max_examples=50, deadline=None)
def test_every_range_that_is_read_can_be_judged(text: str) -> None:
    """What the pattern lets through, pip's own library understands."""
    specifiers = pytest.importorskip("packaging.specifiers")
    specifiers.SpecifierSet(text)


def test_the_schema_is_one_and_describes_every_key() -> None:
    """The file is a valid JSON Schema, closed everywhere, and every property has a sentence or refers to one."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    def walk(node: Any, key: str) -> Iterator[str]:
        """Yield what is open or not described."""
        if not isinstance(node, dict):
            return
        if node.get("type") == "object" and node.get("additionalProperties", True) is True:
            yield f"{key} is open"
        for name, inner in node.get("properties", {}).items():
            if "description" not in inner and "$ref" not in inner:
                yield f"{key}.{name} has no description"
        for name, inner in node.items():
            yield from walk(inner, f"{key}.{name}")

    assert list(walk(SCHEMA, "schema")) == []


@pytest.mark.parametrize(
    "path", [ROOT / "core/src/vllm_ir/vllm_ir_provider.toml", *sorted((ROOT / "docs").rglob("vllm_ir_provider.toml"))]
)
def test_the_manifests_of_this_repository_are_right(path: Path) -> None:
    """Both the schema and the reader take them."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    VALIDATOR.validate(document)
    assert reader_accepts(document)


def test_the_schema_knows_as_many_keys_as_the_page() -> None:
    """Each top-level key of the schema has its row on the page on manifests."""
    page = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    for key in SCHEMA["properties"]:
        assert f"| `{key}" in page, key
