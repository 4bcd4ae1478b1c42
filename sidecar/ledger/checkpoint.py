"""The file that stands in place of segments that were dropped: what of them still counts.

    magic 8, version 4, length 4 and CRC-32 4 of the document | document: MessagePack, `Checkpoint`

It is written whole under another name, synced and renamed. Its SHA-256 stands
in a Checkpoint record, so the chain goes on over what is gone.
"""

from __future__ import annotations

import re
import struct
from hashlib import sha256
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from sidecar.ledger.faults import CHANGE_VERSION, RESTORE, LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import FormatFault, OtherVersion
from sidecar.ledger.seal_format import End
from sidecar.ledger.whole_file import write_whole

_MAGIC: Final = b"\x89CHECK\r\n"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">8sIII")
_NAME: Final = re.compile(r"(\d{16})\.checkpoint")


class KeptBegin(Struct, frozen=True, array_like=True):
    """A Begin that nothing had ended by the end of the last dropped segment, as it stood there with its header."""

    segment: int
    offset: int
    framed: bytes


class Dropped(Struct, frozen=True, kw_only=True):
    """What stood in all segments that have ever been dropped."""

    records: int = 0
    begins: int = 0
    completions: int = 0
    charged_micro_usd: int = 0


def less(all_of_it: Dropped, before: Dropped) -> Dropped:
    """What of it was not dropped before."""
    return Dropped(**{name: figure - getattr(before, name) for name, figure in asdict(all_of_it).items()})


class Checkpoint(Struct, frozen=True, kw_only=True):
    """`end` is that of the last dropped segment, its low-water mark that of the time of dropping."""

    begins: tuple[KeptBegin, ...]
    dropped: Dropped
    end: End


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_checkpoints: Final = msgspec.msgpack.Decoder(Checkpoint)


def checkpoint_path(directory: Path, segment: int) -> Path:
    return directory / f"{segment:016d}.checkpoint"


def segment_of_name(name: str) -> int | None:
    """The last segment that a checkpoint of this name stands for; None for another file."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def encode(checkpoint: Checkpoint) -> bytes:
    """The whole file; equal checkpoints give equal bytes."""
    document = _encode(checkpoint)
    return _HEADER.pack(_MAGIC, _VERSION, len(document), crc32(document)) + document


def decode(written: bytes) -> Checkpoint:
    """Raises FormatFault."""
    if len(written) < _HEADER.size or written[:8] != _MAGIC:
        raise FormatFault("the begin of a checkpoint")
    _, version, length, crc = _HEADER.unpack_from(written)
    document = written[_HEADER.size :]
    if version != _VERSION:
        raise OtherVersion(f"version {_VERSION} of a checkpoint; a version of sidecar that writes {version} reads it")
    if length != len(document) or crc32(document) != crc:
        raise FormatFault(f"a checkpoint of {length} bytes whose CRC fits")
    try:
        return _checkpoints.decode(document)
    except msgspec.MsgspecError as error:
        raise FormatFault(f"a checkpoint ({error})") from None


def read(files: DiskFiles, directory: Path, segment: int) -> tuple[Checkpoint, bytes]:
    """With the file's SHA-256, as the disk holds it. Raises LedgerDamaged, OSError."""
    path = checkpoint_path(directory, segment)
    descriptor = files.open_to_read(path)
    try:
        files.forget_cache(descriptor)
        written = files.read(descriptor, files.size(descriptor), 0)
    finally:
        files.close(descriptor)
    try:
        checkpoint = decode(written)
        if checkpoint.end.segment != segment:
            raise FormatFault(f"a checkpoint of segment {segment}")
    except OtherVersion as fault:
        raise LedgerDamaged(path, 0, str(fault), CHANGE_VERSION) from fault
    except FormatFault as fault:
        raise LedgerDamaged(path, 0, str(fault), RESTORE) from fault
    return checkpoint, sha256(written).digest()


def write(files: DiskFiles, directory: Path, checkpoint: Checkpoint) -> bytes:
    """Synced under its name, and seen to be there by reading the disk. Its SHA-256. Raises OSError, LedgerDamaged."""
    written = encode(checkpoint)
    path = checkpoint_path(directory, checkpoint.end.segment)
    write_whole(files, path, lambda descriptor: files.write(descriptor, [written], 0))
    read_again, digest = read(files, directory, checkpoint.end.segment)
    if read_again != checkpoint:
        raise LedgerDamaged(path, 0, "the checkpoint that was written")
    return digest
