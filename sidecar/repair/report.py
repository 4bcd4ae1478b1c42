"""What a repair has to say, as one document: what was read, what can't be, and what became of the money."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from sidecar.audit.reading import Reading
from sidecar.contract.values import BeginRecord
from sidecar.repair.copying import Copied, FirstLook, Remark
from sidecar.repair.salvage import Salvage

Verdict = Literal["sound", "repaired"]
_OF_A_BEGIN: Final = ("caller_runtime_id", "request_id", "model", "upstream", "provider")


def verdict_of(look: FirstLook, salvage: Salvage, copied: Copied) -> Verdict:
    """Sound only where a reading from front to back was, and every record was taken as it stood."""
    is_sound = look.is_sound and not (
        salvage.may_have_lost or salvage.strange or salvage.sources.strange or copied.unattributed or copied.remarks
    )
    return "sound" if is_sound else "repaired"


def document(
    directory: Path, look: FirstLook, salvage: Salvage, copied: Copied, new: Reading, created_at_unix_ms: int
) -> dict[str, Any]:
    """Every member is always there. `created_at_unix_ms` is the only one that the same two ledgers don't decide."""
    return {
        "created_at_unix_ms": created_at_unix_ms,
        "damaged_directory": str(directory.absolute()),
        "verdict": verdict_of(look, salvage, copied),
        "first_damage": _first_damage(look),
        "before_first_damage": {
            "chain_head": look.head.hex(),
            "batch": look.batch,
            "requests": look.requests,
            "charged_micro_usd": look.charged_micro_usd,
            "held_micro_usd": look.held_micro_usd,
        },
        "read": {
            "whole_batches": salvage.whole_batches,
            "records": salvage.seen.records,
            "segments": [
                {
                    "segment": source.number,
                    "file": source.path.name,
                    "known_by": source.identity,
                    "size_bytes": source.size,
                }
                for source in salvage.sources.segments
            ],
            "not_taken": [{"file": name, "why": why} for name, why in salvage.sources.strange],
            "left_behind": list(salvage.sources.left_behind),
        },
        "dropped": _dropped(salvage),
        "gaps": [msgspec.to_builtins(gap) for gap in salvage.gaps],
        "contradictions": [
            *(msgspec.to_builtins(one) for one in salvage.strange),
            *(_of_remark(remark) for remark in copied.remarks),
        ],
        "kept": {"completed": copied.completed, "indeterminate": len(copied.open)},
        "indeterminate": [_of_begin(begin) for begin in copied.open.values()],
        "unattributed": [_of_remark(remark) for remark in copied.unattributed],
        "unattributed_micro_usd": sum(one.line.members["charge_micro_usd"] for one in copied.unattributed),
        "low_water": {"expires_at_unix_ms": copied.low_water_unix_ms, "why": copied.low_water_why},
        "new": {
            "chain_head": new.head.hex(),
            "batch": new.batch,
            "requests": new.requests,
            "charged_micro_usd": new.charged_micro_usd,
            "held_micro_usd": new.held_micro_usd,
        },
    }


def encoded(told: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(told, order="deterministic"), indent=2) + b"\n"


def _first_damage(look: FirstLook) -> dict[str, Any] | None:
    if look.damage is not None:
        return {
            "segment": look.damage.segment.name,
            "offset": look.damage.offset,
            "expected": look.damage.expected,
        }
    if look.unreadable is not None:
        return {"segment": None, "offset": None, "expected": f"bytes that can be read: {look.unreadable}"}
    return None


def _dropped(salvage: Salvage) -> dict[str, Any] | None:
    """What retention had removed, as the checkpoint says that was read; its open requests are kept, and not lost."""
    start = salvage.sources.start
    if not start.name:
        return None
    return {
        "why": "dropped by retention earlier",
        "checkpoint": start.name,
        "until_segment": start.segment,
        **msgspec.to_builtins(start.dropped),
        "open": len(start.begins),
    }


def _of_begin(begin: BeginRecord) -> dict[str, Any]:
    return {
        **{name: getattr(begin, name) for name in _OF_A_BEGIN},
        "admitted_at_unix_ms": begin.admitted_at_unix_ms,
        "expires_at_unix_ms": begin.expires_at_unix_ms,
        "reservation_micro_usd": begin.reservation_micro_usd,
    }


def _of_remark(remark: Remark) -> dict[str, Any]:
    members = remark.line.members
    named = ("caller_runtime_id", "request_id", "reservation_micro_usd", "begin_segment", "begin_offset",
             "charge_micro_usd", "completed_at_unix_ms", "outcome")  # fmt: skip
    return {
        "segment": remark.line.segment,
        "offset": remark.line.offset,
        "what": f"{remark.line.kind}: {remark.why}",
        **{name: members[name] for name in named if name in members},
    }
