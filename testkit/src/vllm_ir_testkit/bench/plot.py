"""A benchmark as a picture: for each op and dtype the time of a call and its rate against a copy's, over the sizes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir_testkit.bench.measuring import CLONE, COMPILED, COPY
from vllm_ir_testkit.errors import BadBenchRequest, NoPlotting

if TYPE_CHECKING:
    from vllm_ir_testkit.bench.results import Benchmark, Row

KINDS: Final = (".png", ".svg")
"""What a plot can be."""

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours that stay apart for every eye (Okabe and Ito)."""

GREY: Final = "#888888"


def check(file: str) -> None:
    """Refuse a plot that could not be written in the end, before anything is measured.

    Raises:
        NoPlotting: matplotlib is not installed.
        BadBenchRequest: it is neither PNG nor SVG, or its folder does not exist.
    """
    path = Path(file)
    if path.suffix.lower() not in KINDS:
        raise BadBenchRequest(option="--plot", got=file, wanted=f"a file that ends in {' or '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise BadBenchRequest(option="--plot", got=file, wanted="a file in a folder that exists")
    if find_spec("matplotlib") is None:
        raise NoPlotting(file=file)


def draw(benchmark: Benchmark, file: str) -> None:
    """Write the picture of a benchmark that measured something."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: dict[str, list[Row]] = {}
    for row in benchmark.rows:
        if row.timing is not None:
            overload = " in place" if row.overload == "maybe_inplace" else ""
            panels.setdefault(f"{row.op}{overload}, {row.dtype}", []).append(row)
    names = list(dict.fromkeys(row.contender for rows in panels.values() for row in rows))
    styles = _styles(names)
    figure = Figure(figsize=(11, 1.0 + 2.9 * max(len(panels), 1)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(max(len(panels), 1), 2, squeeze=False)
    for (left, right), (title, rows) in zip(axes, panels.items(), strict=False):
        sizes = list(dict.fromkeys(row.size for row in rows))
        for name in names:
            mine = {row.size: row for row in rows if row.contender == name}
            _line(left, sizes, mine, styles[name], _microseconds)
            _line(right, sizes, mine, styles[name], _rate)
        _dress(left, title, "µs a call (less is better)", sizes)
        _dress(right, title, "GB/s (more is better)", sizes)
    handles = [axes[0][0].plot([], [], label=name, **styles[name])[0] for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(names), 6), frameon=False)
    figure.suptitle(
        f"{benchmark.device}, {benchmark.threads} threads, torch {benchmark.torch}; median of {benchmark.blocks}"
        " blocks, bars from quartile to quartile",
        fontsize=9,
    )
    figure.savefig(file, dpi=120)


def _styles(names: list[str]) -> dict[str, dict[str, Any]]:
    """Return how each contender is drawn: providers in colours, what they are held against in grey."""
    dashes = {COPY: "--", CLONE: ":", COMPILED: "-."}
    styles: dict[str, dict[str, Any]] = {}
    colours = iter(COLOURS * (1 + len(names) // len(COLOURS)))
    for name in names:
        if name in dashes:
            styles[name] = {"color": GREY, "linestyle": dashes[name], "marker": "", "linewidth": 1.3}
        else:
            styles[name] = {"color": next(colours), "linestyle": "-", "marker": "o", "linewidth": 1.8, "markersize": 4}
    return styles


def _microseconds(row: Row) -> tuple[float, float, float]:
    """Return median and quartiles in microseconds."""
    timing = row.timing
    return (timing.median * 1e6, timing.low * 1e6, timing.high * 1e6) if timing else (0.0, 0.0, 0.0)


def _rate(row: Row) -> tuple[float, float, float]:
    """Return median and quartiles in 1e9 bytes per second."""
    timing = row.timing
    if timing is None:
        return 0.0, 0.0, 0.0
    return row.bytes / timing.median / 1e9, row.bytes / timing.high / 1e9, row.bytes / timing.low / 1e9


def _line(axis: Any, sizes: list[str], mine: dict[str, Row], style: dict[str, Any], value: Any) -> None:
    """Draw one contender over the sizes at which it ran."""
    places = [i for i, size in enumerate(sizes) if size in mine]
    values = [value(mine[sizes[i]]) for i in places]
    middle = [median for median, _, _ in values]
    bars = [[max(m - low, 0.0) for m, low, _ in values], [max(high - m, 0.0) for m, _, high in values]]
    axis.errorbar(places, middle, yerr=bars, capsize=2, elinewidth=0.8, **style)


def _dress(axis: Any, title: str, what: str, sizes: list[str]) -> None:
    """Give a panel its words and a logarithmic scale."""
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_ylabel(what, fontsize=9)
    axis.set_yscale("log")
    axis.set_xticks(range(len(sizes)), sizes, fontsize=8)
    axis.set_xlabel("tokens x hidden size", fontsize=8)
    axis.grid(visible=True, which="major", axis="y", color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
    axis.set_xlim(-0.3, len(sizes) - 0.7)
