"""A strict reader of the Prometheus text format 0.0.4, made from its description: what is doubtful is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_COMMENT = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.*)")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (-?[0-9]+(?:\.[0-9]+)?(?:e[-+][0-9]+)?|[+-]Inf|NaN)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
_KINDS = {"counter", "gauge", "histogram"}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Read:
    """One family: its kind and help, and its samples by name and labels (in the text's order)."""

    kind: str
    what: str
    samples: dict[tuple[str, Labels], Decimal] = field(default_factory=dict)

    def value(self, **labels: str) -> Decimal:
        """Of the sample that has these labels and no others."""
        [found] = [value for (_, its), value in self.samples.items() if dict(its) == labels]
        return found

    def total(self, **labels: str) -> Decimal:
        """Of all samples that have these labels among theirs."""
        return sum((v for (_, its), v in self.samples.items() if labels.items() <= dict(its).items()), Decimal(0))


def read_exposition(text: str) -> dict[str, Read]:
    """The families by name. Fails the test at anything that the format, or good practice, does not allow."""
    assert not text or text.endswith("\n")
    families: dict[str, Read] = {}
    helps: dict[str, str] = {}
    current = ""
    for line in text.split("\n")[:-1]:
        if comment := _COMMENT.fullmatch(line):
            what, name, said = comment.groups()
            if what == "HELP":
                assert name not in helps, f"{name} is explained twice"
                helps[name] = said
            else:
                assert name in helps, f"{name} has no help before its type"
                assert name not in families, f"{name} comes twice"
                assert said in _KINDS, line
                families[name] = Read(said, helps[name])
                current = name
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample, f"no sample: {line!r}"
        name, labels, value = sample.groups()
        family = families[current]
        its_names = {current + suffix for suffix in ("_bucket", "_sum", "_count")}
        assert name in (its_names if family.kind == "histogram" else {current}), f"{name} stands among {current}"
        key = name, _labels(labels or "")
        assert key not in family.samples, f"{key} comes twice"
        family.samples[key] = Decimal(value.replace("Inf", "Infinity"))
    for name, family in families.items():
        _hold_to_practice(name, family)
    return families


def _labels(text: str) -> Labels:
    labels: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        assert found, f"no label: {text[at:]!r}"
        unescaped = re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], found[2])
        labels.append((found[1], unescaped))
        at = found.end()
        assert at == len(text) or text[at] == ",", text
        at += 1
    names = [name for name, _ in labels]
    assert len(set(names)) == len(names), f"a label twice: {text}"
    return tuple(labels)


def _hold_to_practice(name: str, family: Read) -> None:
    assert family.samples, f"{name} has no sample"
    assert (family.kind == "counter") == name.endswith("_total"), name
    if family.kind == "counter":
        assert all(value >= 0 for value in family.samples.values())
    if family.kind == "histogram":
        _hold_buckets(name, family)


def _hold_buckets(name: str, family: Read) -> None:
    """Cumulative, by rising bounds, the last of them all; with their sum and their count."""
    by_labels: dict[Labels, list[tuple[Decimal, Decimal]]] = {}
    for (sample, labels), value in family.samples.items():
        if sample == f"{name}_bucket":
            (_, bound), others = labels[-1], labels[:-1]
            by_labels.setdefault(others, []).append((Decimal(bound.replace("Inf", "Infinity")), value))
    assert by_labels
    for labels, buckets in by_labels.items():
        assert all(low[0] < high[0] and low[1] <= high[1] for low, high in pairwise(buckets)), (name, labels)
        assert buckets[-1][0] == Decimal("Infinity")
        assert family.samples[f"{name}_count", labels] == buckets[-1][1]
        assert (f"{name}_sum", labels) in family.samples
