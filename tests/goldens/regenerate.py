"""Writes everything in `goldens/` but its prose: `python tests/goldens/regenerate.py`. Deterministic."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from goldens.spelling import spelt_bytes, spelt_value, written
from kit import wire

from goldens import daemon_files, published_values, sample_frames, transcripts
from sidecar.contract import canonical
from sidecar.contract.values import ProviderRequest
from sidecar.rules.pricing import input_bound_tokens

GOLDENS = Path(__file__).resolve().parents[2] / "goldens"
MARGINS = (  # overhead tokens, the same per input item, whether tools are rendered twice
    (1024, 0, False),
    (1024, 0, True),
    (0, 7, True),
)


def documents() -> dict[str, Any]:
    """Every golden file by its path inside `goldens/`."""
    files: dict[str, Any] = {}
    for name, (_, named) in published_values.PUBLISHED.items():
        files[f"values/{name}.json"] = {
            "schema": f"gamecult.model.{name}",
            "vectors": [_value_vector(name, vector, value) for vector, value in named()],
        }
    files["frames/variants.json"] = {"vectors": [_variant(*variant) for variant in sample_frames.variants()]}
    for name, samples in sample_frames.rejected().items():
        files[f"frames/{name}.json"] = {"vectors": [_rejected(sample) for sample in samples]}
    files["streams.json"] = {
        "frame_bytes_max": sample_frames.FRAME_BYTES_MAX,
        "vectors": [_stream(*stream) for stream in sample_frames.streams()],
    }
    for name, transcript in transcripts.transcripts().items():
        files[f"transcripts/{name}.json"] = transcript
    return files


def _value_vector(schema: str, name: str, value: Any) -> dict[str, Any]:
    type_ = published_values.PUBLISHED[schema][0]
    typed = msgspec.msgpack.decode(wire.write(value), type=type_)
    encoded = canonical.encode(typed)
    vector: dict[str, Any] = {
        "name": name,
        "value": spelt_value(value),
        "canonical": spelt_bytes(encoded),
        "bytes": len(encoded),
        "sha256": sha256(encoded).hexdigest(),
    }
    if schema == "transport_invocation.v1":
        vector |= _request_digest_and_bounds(typed.request)
    return vector


def _request_digest_and_bounds(request: ProviderRequest) -> dict[str, Any]:
    encoded = canonical.encode(request)
    tools_bytes = canonical.length_of_array(request.tools)
    bounds = [
        {
            "input_overhead_tokens": overhead,
            "input_overhead_tokens_per_item": per_item,
            "tools_rendered_twice": twice,
            "input_bound_tokens": input_bound_tokens(
                request_bytes=len(encoded),
                items=len(request.input),
                tools_bytes=tools_bytes,
                overhead_tokens=overhead,
                overhead_tokens_per_item=per_item,
                tools_rendered_twice=twice,
            ),
        }
        for overhead, per_item, twice in MARGINS
    ]
    return {
        "provider_request_sha256": sha256(encoded).hexdigest(),
        "provider_request_bytes": len(encoded),
        "input_bounds": bounds,
    }


def _variant(name: str, golden: str, frame: bytes) -> dict[str, Any]:
    value = msgspec.msgpack.decode(frame, type=published_values.PUBLISHED["transport_invocation.v1"][0])
    encoded = canonical.encode(value)
    return {
        "name": name,
        "same_as": golden,
        "frame": spelt_bytes(frame),
        "identity_sha256": sha256(encoded).hexdigest(),
    }


def _rejected(sample: sample_frames.Sample) -> dict[str, Any]:
    answer: dict[str, Any] = {"transport_error": sample.code}
    if sample.refusal is not None:
        answer = {
            "refused": sample.refusal,
            "caller_runtime_id": sample.caller_runtime_id,
            "request_id": sample.request_id,
        }
    return {"name": sample.name, "frame": spelt_bytes(sample.frame), "answer": answer}


def _stream(name: str, sent: bytes, frames: list[bytes], error: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "sent": spelt_bytes(sent),
        "frames": [{"bytes": len(frame), "sha256": sha256(frame).hexdigest()} for frame in frames],
        "transport_error": error,
    }


def texts() -> dict[Path, str]:
    """Every file's text by its path."""
    texts = {path: written(document) for path, document in documents().items()}
    return {GOLDENS / path: text for path, text in (texts | daemon_files.texts()).items()}


def there() -> set[Path]:
    """What stands in `goldens/` and is made here."""
    return {path for path in GOLDENS.rglob("*") if path.suffix in (".json", ".toml")}


def main() -> None:
    for gone in there() - set(texts()):
        gone.unlink()
    for path, text in texts().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
        print(f"{path.relative_to(GOLDENS.parent)}  {len(text)} bytes")


if __name__ == "__main__":
    main()
