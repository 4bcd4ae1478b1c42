"""The encoder does not sort where the types are declared in order: it must come to the same bytes."""

from __future__ import annotations

import inspect

import msgspec
import pytest
from kit import records
from msgspec.structs import fields

from sidecar.contract import canonical
from sidecar.contract import connector_frames as c
from sidecar.contract import values as v
from sidecar.ledger.landing import Place

MAPS = [
    kind
    for module in (v, c)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if kind.__module__ == module.__name__
    and issubclass(kind, v.Value)
    and not issubclass(kind, v.OneOf)
    and kind is not v.Value
]
BODIES = [v.RecordBody(begin=records.begin()), v.RecordBody(completed=records.completed(Place(1, 4096, 7)))]


@pytest.mark.parametrize("kind", MAPS, ids=lambda kind: kind.__name__)
def test_every_published_map_declares_its_members_in_the_order_of_their_keys(kind: type[v.Value]) -> None:
    names = [field.encode_name for field in fields(kind)]
    assert names == sorted(names)
    assert len(names) <= 15 or kind is v.BeginRecord, "its header is not the shortest unless the encoder sorts"


@pytest.mark.parametrize("body", BODIES, ids=["begin", "completed"])
def test_a_record_has_the_same_bytes_as_if_all_of_it_were_sorted(body: v.RecordBody) -> None:
    record = v.ReplayRecord(schema_id=v.REPLAY_RECORD, record=body)
    for value in (record, body, body.chosen):
        assert canonical.encode(value) == msgspec.msgpack.encode(value, order="sorted")
