"""Numbers that are counted while a process runs, and their text in the Prometheus exposition format 0.0.4.

An instrument is a plain attribute that its one thread adds to: no lock, no
registry to ask. A `Series` keeps instruments by their label values, and never
more than its bound: what is beyond it is counted under `ALL_OTHERS`, so that
sums stay true whatever comes. Amounts are whole numbers of a small unit (a
micro-dollar, a millisecond) and printed exactly in the base unit, so that no
float stands between what was charged and what is read.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, Generic, Literal, TypeVar

from msgspec import Struct

ALL_OTHERS: Final = "all others"  # no id holds a space
LABEL_SETS_MAX: Final = 256
SPREAD_SETS_MAX: Final = 48  # a spread takes as many lines as it has bounds, and three

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]


class Family(Struct, frozen=True, kw_only=True):
    """One quantity: its values stand in `10 ** -decimals` of the unit that its name ends in."""

    name: str
    kind: Kind
    what: str  # for a person; one line
    labels: Labels = ()
    decimals: int = 0


class Spread:
    """How values spread over fixed bounds, each counted where it is at most the bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def take(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def take_all(self, values: Collection[float]) -> None:
        """As `take` of each; of many, a fraction of its cost."""
        if len(values) < 4 * len(self.bounds):
            for value in values:
                self.take(value)
            return
        ordered, below = sorted(values), 0
        for place, bound in enumerate(self.bounds):
            at_most = bisect_right(ordered, bound)
            self.counts[place] += at_most - below
            below = at_most
        self.counts[-1] += len(ordered) - below
        self.sum += sum(ordered)


class Count:
    """One number that only grows; whoever counts adds to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


Instrument = TypeVar("Instrument")


class Series(Generic[Instrument]):
    """One instrument for each set of label values. The first `open_labels` of them are not of a closed set."""

    def __init__(self, make: Callable[[], Instrument], *, open_labels: int = 1, sets_max: int = LABEL_SETS_MAX) -> None:
        self._make = make
        self._open_labels = open_labels
        self._sets_max = sets_max
        self._made: dict[Labels, Instrument] = {}

    def of(self, *values: str) -> Instrument:
        """The instrument of these values; beyond the bound, that of all others."""
        found = self._made.get(values)
        if found is None:
            if len(self._made) >= self._sets_max:
                values = (ALL_OTHERS,) * self._open_labels + values[self._open_labels :]
            found = self._made.get(values)
        if found is None:
            found = self._made[values] = self._make()
        return found

    def __iter__(self) -> Iterator[tuple[Labels, Instrument]]:
        return iter(sorted(self._made.items(), key=lambda made: made[0]))


def counts(series: Iterable[tuple[Labels, Count]]) -> Iterator[tuple[Labels, int]]:
    """What such a series has counted."""
    for labels, count in series:
        yield labels, count.value


# --- the text ---------------------------------------------------------------------------------------------------

Value = int | float | Spread
Read = tuple[Family, Iterable[tuple[Labels, Value]]]


def exposed(read: Iterable[Read]) -> str:
    """The exposition of these families, in their order; one without a value is left out."""
    lines: list[str] = []
    for family, values in read:
        samples = [line for labels, value in values for line in _samples(family, labels, value)]
        if samples:
            lines.append(f"# HELP {family.name} {_escaped_help(family.what)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += samples
    return "".join([f"{line}\n" for line in lines])


def _samples(family: Family, labels: Labels, value: Value) -> Iterator[str]:
    assert len(labels) == len(family.labels), f"{family.name} has other labels"
    pairs = [f'{name}="{_escaped_label(said)}"' for name, said in zip(family.labels, labels, strict=True)]
    if not isinstance(value, Spread):
        yield f"{family.name}{_braced(pairs)} {_number(value, family.decimals)}"
        return
    below = 0
    for bound, count in zip((*value.bounds, math.inf), value.counts, strict=True):
        below += count
        at_most = f'le="{_number(bound, 0)}"'
        yield f"{family.name}_bucket{_braced([*pairs, at_most])} {below}"
    yield f"{family.name}_sum{_braced(pairs)} {_number(value.sum, family.decimals)}"
    yield f"{family.name}_count{_braced(pairs)} {below}"


def _braced(pairs: list[str]) -> str:
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _number(value: float, decimals: int) -> str:
    if isinstance(value, int):
        return _exact(value, decimals)
    assert decimals == 0, "what has a small unit is counted in whole ones"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value).removesuffix(".0")


def _exact(value: int, decimals: int) -> str:
    if not decimals:
        return str(int(value))
    whole, part = divmod(abs(value), 10**decimals)
    fraction = f"{part:0{decimals}}".rstrip("0")
    return f"{'-' if value < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escaped_label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# --- the text read again ----------------------------------------------------------------------------------------

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPED: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def read_samples(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """Name, labels and value, as it stands, of each sample of a text that `exposed` has made."""
    for line in text.split("\n"):
        if line and not line.startswith("#"):
            sample = _SAMPLE.fullmatch(line)
            if sample is None:
                raise ValueError(f"this is no sample: {line[:80]!r}")
            name, labels, value = sample.groups()
            yield name, {label: _unescaped(said) for label, said in _LABEL.findall(labels or "")}, value


def _unescaped(said: str) -> str:
    return re.sub(r'\\[\\"n]', lambda found: _ESCAPED[found[0]], said)
