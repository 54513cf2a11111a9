"""Orders of providers: how layers merge, and how lists are written and misread."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.errors import MalformedPriority
from vllm_ir.priority import FLAG, Layer, Wish, merge, parse_arguments, parse_text, read_providers

NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=4).filter(lambda name: name != "native")
PROVIDERS = st.lists(st.one_of(NAMES, st.just("native")), max_size=5)
LISTS = st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=4, unique=True), max_size=4)
WISHES = st.lists(
    st.builds(Wish, st.sampled_from(list(Layer)), PROVIDERS.map(tuple), for_every_op=st.booleans()), max_size=6
)
SPACES = st.sampled_from(["", " ", "  ", "\t"])


@given(WISHES)
def test_each_provider_stands_once_and_native_always(wishes: list[Wish]) -> None:
    """Whoever was named has one place, and somebody is always left."""
    providers = merge(wishes).providers
    assert len(set(providers)) == len(providers)
    assert set(providers) == {"native"}.union(*(wish.providers for wish in wishes))


@given(WISHES)
def test_later_layers_go_first(wishes: list[Wish]) -> None:
    """A provider stands at the place that the highest layer gave it, so layers only descend along the order."""
    layers = [entry.layer for entry in merge(wishes).entries]
    assert layers == sorted(layers, reverse=True)
    for entry in merge(wishes).entries:
        naming = [wish.layer for wish in wishes if entry.provider in wish.providers]
        assert entry.layer == max(naming, default=Layer.BUILT_IN)


@given(WISHES)
def test_the_order_within_a_wish_is_kept(wishes: list[Wish]) -> None:
    """Entries of one wish that were not taken by a higher one come as they were written."""
    entries = merge(wishes).entries
    if not wishes:
        return
    _, top = max(enumerate(wishes), key=lambda pair: (pair[1].layer, pair[0]))
    expected = tuple(dict.fromkeys(top.providers))
    assert tuple(entry.provider for entry in entries)[: len(expected)] == expected


@given(WISHES)
def test_merging_in_any_order_of_layers_is_the_same(wishes: list[Wish]) -> None:
    """Only within one layer does it matter who came later."""
    by_layer = sorted(wishes, key=lambda wish: wish.layer)
    assert merge(by_layer) == merge(wishes)


def test_the_inner_of_two_scopes_goes_first() -> None:
    """Within one layer the later wish wins."""
    outer, inner = (Wish(Layer.SET_PRIORITY, (name, "c")) for name in "ab")
    assert merge([outer, inner]).providers == ("b", "c", "a", "native")


def test_the_layers_stand_in_the_order_of_the_contract() -> None:
    """Built-in first, a scope last; from the settings file on a user has named the provider."""
    assert [layer.name for layer in sorted(Layer)] == [
        "BUILT_IN",
        "PROVIDER_DEFAULT",
        "PLATFORM_DEFAULT",
        "FILE",
        "ENVIRONMENT",
        "COMMAND_LINE",
        "KERNEL_CONFIG",
        "SET_DEFAULT",
        "SET_PRIORITY",
    ]
    assert [layer for layer in Layer if layer.named] == list(Layer)[3:]
    assert len({layer.label for layer in Layer}) == len(Layer)


def test_an_entry_remembers_who_put_it_there() -> None:
    """The layer in words, a file's name where a file said it, and whether it must run."""
    wishes = [
        Wish(Layer.PROVIDER_DEFAULT, ("a",)),
        Wish(Layer.FILE, ("b",), source="vllm-ir.toml"),
        Wish(Layer.KERNEL_CONFIG, ("c",), for_every_op=True),
    ]
    assert [(entry.provider, entry.source, entry.required) for entry in merge(wishes).entries] == [
        ("c", "KernelConfig", False),
        ("b", "vllm-ir.toml", True),
        ("a", "provider default", False),
        ("native", "built-in", False),
    ]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a,b", ("a", "b")),
        ("a, b", ("a", "b")),
        (" a ,, b ,", ("a", "b")),
        ("a", ("a",)),
        ("", ("native",)),
        (" , ", ("native",)),
        ([], ("native",)),
        (["a", "b", "a"], ("a", "b")),
        ("b,a,b", ("b", "a")),
        (("a ", "b"), ("a", "b")),
    ],
)
def test_a_list_of_providers(written: str | list[str], read: tuple[str, ...]) -> None:
    """Blanks are no part of a name, a provider counts once, and an empty list means native."""
    assert read_providers(written) == read


@pytest.mark.parametrize("written", [5, None, [5], ["a", None], {"a": 1}, b"a", iter("ab")])
def test_what_is_no_list_of_providers(written: object) -> None:
    """Neither text nor a list of texts."""
    with pytest.raises(MalformedPriority) as caught:
        read_providers(written, "set_default")  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"set_default: {written!r} is no priority list: wanted provider names. Write op=provider,provider with ';'"
        " between ops, for example rms_norm=fast,native;silu_and_mul=native."
    ).replace(repr(written), repr(repr(written)))
    assert (caught.value.text, caught.value.layer) == (repr(written), "set_default")


@given(LISTS, SPACES)
def test_a_text_is_read_as_it_was_written(lists: dict[str, list[str]], blank: str) -> None:
    """Whatever ops and providers, with blanks anywhere between."""
    text = f"{blank};{blank}".join(
        f"{op}{blank}={blank}" + f"{blank},{blank}".join(names) for op, names in lists.items()
    )
    assert parse_text(text) == {op: tuple(names) for op, names in lists.items()}


FLAGS = st.sampled_from([FLAG, "--ir_op_priority", "--ir-op_priority"])
OTHERS = st.lists(st.sampled_from(["run", "--model", "x=y", "-v", "--ir-op-priorities=a"]), max_size=4)


@given(LISTS, OTHERS, st.lists(st.tuples(FLAGS, st.booleans(), st.booleans()), min_size=4, max_size=4))
def test_arguments_are_read_as_they_were_written(
    lists: dict[str, list[str]], others: list[str], forms: list[tuple[str, bool, bool]]
) -> None:
    """Flags with `=` or a blank, with dashes or underscores, among other arguments, which are left in their order."""
    arguments: list[str] = []
    rest = list(others)
    for (op, names), (flag, joined, between) in zip(lists.items(), forms, strict=False):
        if rest and between:
            arguments.append(rest.pop(0))
        text = ",".join(names)
        arguments += [f"{flag}.{op}={text}"] if joined else [f"{flag}.{op}", text]
    assert parse_arguments([*arguments, *rest]) == ({op: tuple(names) for op, names in lists.items()}, others)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rms_norm", "'rms_norm' has no '='"),
        ("rms_norm=a;silu", "'silu' has no '='"),
        ("=a", "'=a' has no op before '='"),
        ("rms_norm=a;rms_norm=b", "op 'rms_norm' is given twice"),
    ],
)
def test_a_text_that_cannot_be_read(text: str, reason: str) -> None:
    """The error says which part, who wrote it, and how it is written."""
    with pytest.raises(MalformedPriority) as caught:
        parse_text(text, "VLLM_IR_OP_PRIORITY")
    assert str(caught.value) == (
        f"VLLM_IR_OP_PRIORITY: {text!r} is no priority list: {reason}. Write op=provider,provider with ';' between ops,"
        " for example rms_norm=fast,native;silu_and_mul=native."
    )


@pytest.mark.parametrize("text", ["", ";", " ; ; "])
def test_an_empty_text_is_no_list_at_all(text: str) -> None:
    """Nothing was asked for."""
    assert parse_text(text) == {}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([f"{FLAG}=a"], f"wanted {FLAG}.<op>=<providers>"),
        ([f"{FLAG}.=a"], f"wanted {FLAG}.<op>=<providers>"),
        ([FLAG, "a"], f"wanted {FLAG}.<op>=<providers>"),
        ([f"{FLAG}.rms_norm"], "the providers are missing"),
        ([f"{FLAG}.rms_norm", "--model"], "the providers are missing"),
        ([f"{FLAG}.rms_norm", "--", "a"], "the providers are missing"),
        ([f"{FLAG}.rms_norm=a", f"{FLAG}.rms_norm", "b"], "op 'rms_norm' is given twice"),
        ([f"{FLAG}.rms_norm=a", "--ir_op_priority.rms_norm=b"], "op 'rms_norm' is given twice"),
    ],
)
def test_arguments_that_cannot_be_read(arguments: list[str], reason: str) -> None:
    """A missing op, a missing list and one op twice each have their own reason."""
    with pytest.raises(MalformedPriority) as caught:
        parse_arguments(arguments)
    assert caught.value.reason == reason
    assert str(caught.value).startswith(f"{FLAG}: ")


def test_what_follows_two_dashes_is_not_looked_at() -> None:
    """It belongs to somebody else, with the dashes."""
    arguments = [f"{FLAG}.a=b", "x", "--", f"{FLAG}.c=d", FLAG]
    assert parse_arguments(arguments) == ({"a": ("b",)}, ["x", "--", f"{FLAG}.c=d", FLAG])


@pytest.mark.parametrize(("value", "read"), [("=", ("native",)), ("=,", ("native",)), ("=a, b", ("a", "b"))])
def test_a_flag_reads_its_list_like_everybody(value: str, read: tuple[str, ...]) -> None:
    """An empty list means native on the command line, too."""
    assert parse_arguments([f"{FLAG}.rms_norm{value}"]) == ({"rms_norm": read}, [])
