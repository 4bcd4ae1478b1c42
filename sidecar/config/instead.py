"""What to write instead: for a value of the wrong shape, the line's right side as it would be taken.

Pure, from the wrong value and what its reader takes. A text is only said again
where it is a number in disguise: what was pasted in the wrong place may be a
secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final, Literal

Unit = Literal["", "bytes", "seconds", "days", "micro-USD"]

_AMOUNT: Final = re.compile(r"\$?\s*(\d[\d_,]*(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_DIGITS_MAX: Final = 30
_FACTORS: Final[Mapping[str, Mapping[str, str]]] = {
    "": {"": "1"},
    "bytes": {
        "": "1",
        "b": "1",
        "bytes": "1",
        "k": "1024",
        "m": "1048576",
        "g": "1073741824",
        "kb": "1000",
        "mb": "1000000",
        "gb": "1000000000",
        "kib": "1024",
        "mib": "1048576",
        "gib": "1073741824",
    },
    "seconds": {
        "": "1",
        "s": "1",
        "sec": "1",
        "seconds": "1",
        "ms": "0.001",
        "m": "60",
        "min": "60",
        "minutes": "60",
        "h": "3600",
        "hours": "3600",
        "d": "86400",
        "day": "86400",
        "days": "86400",
        "w": "604800",
    },
    "days": {"": "1", "d": "1", "day": "1", "days": "1", "w": "7", "weeks": "7", "months": "31", "y": "366"},
    "micro-USD": {"": "1", "usd": "1000000"},
}
_WHOLE_DOLLARS_BELOW: Final = 1000  # a float or a text from here on is rather micro-USD
_NAMES_MAX: Final = 30  # said in one hint
SURELY: Final = 0.75  # so much like a name that what stands beside it is read as if it were that one
_MEANT: Final[Mapping[str, str]] = {  # what other programs call a key of ours
    **dict.fromkeys(("api_key", "apikey", "key", "token", "secret", "password", "auth_token"), "credential"),
    **dict.fromkeys(("url", "endpoint", "host", "api_base"), "base_url"),
    **dict.fromkeys(("type", "provider", "driver"), "kind"),
    **dict.fromkeys(("path", "dir", "folder"), "directory"),
    **dict.fromkeys(("timeout", "timeout_seconds"), "time_limit_seconds"),
    **dict.fromkeys(("budget", "ceiling", "limit", "spend_limit"), "spend_ceiling_micro_usd"),
    **dict.fromkeys(("window", "period"), "spend_window_seconds"),
    **dict.fromkeys(("max_tokens", "max_output_tokens"), "output_tokens_max"),
    "mode": "socket_mode",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """A hint with the known name that looks most like this one, or with all of them where none does."""
    known = sorted(known)
    if close := closest(name, known):
        return f"did you mean {close}?"
    if not known:
        return None
    more = f" and {len(known) - _NAMES_MAX} more" if len(known) > _NAMES_MAX else ""
    return f"known: {', '.join(known[:_NAMES_MAX])}{more}"


def closest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The known name that this one was meant to be, if there is one that is so much like it; 1 is the same."""
    known = list(known)
    if _MEANT.get(name.lower()) in known:
        return _MEANT[name.lower()]
    close = get_close_matches(name, known, n=1, cutoff=likeness)
    return close[0] if close else None


def for_number(value: Any, at_least: float, at_most: float, unit: Unit, *, whole: bool) -> str:
    """For what is no number at all, or one with a part behind its point where a whole one is wanted."""
    if (meant := _meant(value, unit)) is not None and at_least <= meant <= at_most:
        is_whole = meant == meant.to_integral_value()
        if is_whole or not whole:
            quoted = ", without quotes" if isinstance(value, str) else ""
            return f"write {shown(int(meant) if is_whole else float(meant))}{_in_usd(meant, unit)}{quoted}"
    what = "a whole number" if whole else "a number"
    of = f" of {unit}" if unit else ""
    return f"write {what}{of} from {shown(at_least)} to {shown(at_most)}, without quotes{_example(unit)}"


def for_bounds(value: float, at_least: float, at_most: float, unit: Unit) -> str:
    """For a number that is too small or too large."""
    if unit == "micro-USD" and value < at_least:
        return f"write {shown(at_least)} or more{_example(unit)}"
    return f"write {shown(at_least)} or more" if value < at_least else f"write {shown(at_most)} or less"


def for_text(value: Any) -> str:
    """For what is no text, or an empty one."""
    match value:
        case str():
            return "write it between the quotes, or leave the line out where it has a default"
        case bool():
            return f'write "{str(value).lower()}", in quotes'
        case int() | float() if abs(value) < 10**_DIGITS_MAX:
            return f'write "{value}", in quotes'
        case [str()]:
            return "write it without brackets"
    return 'write a text in quotes, such as "dungeon"'


def for_id(value: Any) -> str:
    if isinstance(value, str):
        return (
            'write it without spaces and without letters outside ASCII, such as "npc-fast"' if value else for_text("")
        )
    return for_text(value)


def for_flag(value: Any) -> str:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return f"write {value.lower()}, without quotes"
    if isinstance(value, str) and value.lower() in ("yes", "on", "no", "off"):
        return f"write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    if value in (0, 1):
        return f"write {'true' if value else 'false'}"
    return "write true or false, without quotes"


def for_choice(value: Any, words: tuple[str, ...]) -> str:
    if isinstance(value, str) and (close := closest(value, words) or closest(value.lower(), words)):
        return f"did you mean {close}?"
    return f"write one of them in quotes, such as {words[0]!r}".replace("'", '"')


def for_list(value: Any) -> str:
    if isinstance(value, str) and len(value) <= _DIGITS_MAX:
        return "write it in brackets: [...]"
    return "write it in brackets, with commas between: [..., ...]"


def shown(number: float) -> str:
    """A number as the configuration would have it: one of thousands of digits can't be printed and needs not be."""
    if isinstance(number, int):
        return f"a number of {number.bit_length()} bits" if number.bit_length() > 128 else f"{number:_}"
    return f"{number:g}"


def _meant(value: Any, unit: Unit) -> Decimal | None:
    """The number that a value of another shape stands for, if that is plain."""
    if isinstance(value, float):
        if not math.isfinite(value) or abs(value) > 10**_DIGITS_MAX:
            return None
        exact = Decimal(repr(value))
        return exact * 1_000_000 if unit == "micro-USD" and abs(value) < _WHOLE_DOLLARS_BELOW else exact
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= _DIGITS_MAX else None
    if match is None:
        return None
    named = match[2].lower()
    amount = Decimal(re.sub("[_,]", "", match[1]))
    if unit == "micro-USD" and not named and ("$" in value or "." in match[1] or amount < _WHOLE_DOLLARS_BELOW):
        named = "usd"
    factor = _FACTORS[unit].get(named)
    return None if factor is None else amount * Decimal(factor)


def _in_usd(meant: Decimal, unit: Unit) -> str:
    """How much money it is, said where a person may have meant dollars."""
    if unit != "micro-USD":
        return ""
    return f" for {(meant / 1_000_000).normalize():f} USD"


def _example(unit: Unit) -> str:
    return "; money is whole micro-USD: 5_000_000 is 5 USD" if unit == "micro-USD" else ""
