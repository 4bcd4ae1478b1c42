"""From the counts that a provider reports to the contract's usage; nonsense is refused, never repaired.

Counts come as whatever JSON held. A total that is missing, negative, no
integer or above uint64 makes the usage unusable; a part (cache read, cache
write, reasoning) that is above its total is clamped to it, and the record says
so. Source: CONTRACT section 5, WIRE section 1.4.
"""

from __future__ import annotations

from sidecar.contract.values import U64_MAX, Usage


class UnusableUsage(ValueError):
    """A count that can't be money: which, and what stood there."""


def plain_usage(
    *,
    input_total: object,
    cache_read: object = 0,
    cache_write: object = 0,
    output: object,
    reasoning: object = None,
) -> tuple[Usage, bool]:
    """Usage where the provider's input total includes cache reads and writes; and whether a part was clamped."""
    total = _count("input tokens", input_total)
    read_said, write_said = _part("cache read tokens", cache_read), _part("cache write tokens", cache_write)
    read = min(read_said, total)
    write = min(write_said, total - read)
    usage, clamped = usage_from_parts(
        input_tokens=total - read - write, cache_read=read, cache_write=write, output=output, reasoning=reasoning
    )
    return usage, clamped or (read, write) != (read_said, write_said)


def usage_from_parts(
    *,
    input_tokens: object,
    cache_read: object = 0,
    cache_write: object = 0,
    output: object,
    reasoning: object = None,
) -> tuple[Usage, bool]:
    """Usage where the provider reports plain input apart; and whether reasoning was clamped to output."""
    made = _count("output tokens", output)
    thought_said = None if reasoning is None else _count("reasoning tokens", reasoning)
    thought = None if thought_said is None else min(thought_said, made)
    usage = Usage(
        input_tokens=_count("input tokens", input_tokens),
        cache_read_tokens=_part("cache read tokens", cache_read),
        cache_write_tokens=_part("cache write tokens", cache_write),
        output_tokens=made,
        reasoning_tokens=thought,
    )
    return usage, thought != thought_said


def _part(what: str, said: object) -> int:
    return 0 if said is None else _count(what, said)


def _count(what: str, said: object) -> int:
    if isinstance(said, bool) or not isinstance(said, int):
        raise UnusableUsage(f"{what}: {'missing' if said is None else f'{_shown(said)} is no integer'}")
    if not 0 <= said <= U64_MAX:
        raise UnusableUsage(f"{what}: {'negative' if said < 0 else 'above 2^64 - 1'}")
    return said


def _shown(said: object) -> str:
    """What stood in a count's place, short whatever it was."""
    if isinstance(said, str):
        return repr(said[:40])
    return repr(said) if isinstance(said, bool | float) else f"a {type(said).__name__}"
