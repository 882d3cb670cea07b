"""Numbers as text, as precisely as they are known: a mean and its interval have the same digits, chosen by its width.

`plots.js` does the same for pages.
"""

import math
from collections.abc import Sequence

from asyncrollout.stats import Estimate

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
_LEAST, _MOST = 1e-3, 1e15  # beyond these, numbers have an exponent
_MOST_DECIMALS = 12


def as_texts(values: Sequence[float | None], sign: str = "") -> list[str]:
    """Numbers with the same unit and decimals, so that two digits of what they differ by are shown; "-" for None.

    `sign` is "+" if numbers above 0 have a sign.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    size = max(map(abs, known), default=0.0)
    factor, unit = _unit(size)
    decimals = _decimals(size / factor, (max(known, default=0.0) - min(known, default=0.0)) / factor)
    return ["-" if value is None else f"{_fixed(value / factor, decimals, sign)}{unit}" for value in values]


def as_shares(values: Sequence[float | None], sign: str = "") -> list[str]:
    """Shares in percent, likewise."""
    known = [100 * value for value in values if value is not None]
    width = max(known, default=0.0) - min(known, default=0.0)
    size = max(map(abs, known), default=0.0)
    decimals = max(1, _digits_of(width, 2), _digits_of(size, 2) if size < 1 else 0)
    return ["-" if value is None else f"{_fixed(100 * value, decimals, sign)}%" for value in values]


def mean_and_interval(found: Estimate, sign: str = "", *, share: bool = False) -> tuple[str, str]:
    """The mean, and its interval in brackets, which is empty if there is none."""
    mean, low, high = (as_shares if share else as_texts)([found.mean, found.low, found.high], sign)
    return mean, "" if found.low is None else f"[{low}, {high}]"


def as_estimate(found: Estimate, sign: str = "", *, share: bool = False) -> str:
    """Both as one text."""
    return " ".join(filter(None, mean_and_interval(found, sign, share=share)))


def _unit(size: float) -> tuple[float, str]:
    if size == 0 or _LEAST <= size < _UNITS[-1][0]:
        return 1.0, ""
    if _LEAST <= size < _MOST:
        return next((factor, unit) for factor, unit in _UNITS if size >= factor)
    exponent = math.floor(math.log10(size))
    return 10.0**exponent, f"e{exponent}"


def _decimals(size: float, width: float) -> int:
    """Three, fewer for large numbers; more for small ones, and for narrow intervals."""
    usual = max(0, 3 - max(0, _magnitude(size) - 1)) if size else 3
    small = _digits_of(size, 3) if size < 0.1 else 0
    return min(max(usual, small, _digits_of(width, 2)), _MOST_DECIMALS)


def _digits_of(value: float, digits: int) -> int:
    """How many decimals show so many digits of a value."""
    return max(0, digits - 1 - _magnitude(value)) if value > 0 else 0


def _magnitude(value: float) -> int:
    return math.floor(math.log10(value))


def _fixed(value: float, decimals: int, sign: str) -> str:
    text = f"{value:{sign}.{decimals}f}"
    return text.replace("-", sign, 1) if text.startswith("-") and not float(text) else text
