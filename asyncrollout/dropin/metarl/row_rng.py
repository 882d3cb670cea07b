"""A generator for a batch of rollouts, of which each row is drawn from its own rollout's generator."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrollout.errors import UsageError

_SIZE_AT = {
    **dict.fromkeys(("random", "standard_normal", "standard_exponential"), 0),
    **dict.fromkeys(("choice", "exponential", "standard_gamma", "poisson", "geometric"), 1),
    **dict.fromkeys(("integers", "normal", "uniform", "laplace", "gumbel", "logistic", "lognormal"), 2),
    **dict.fromkeys(("beta", "gamma", "binomial"), 2),
}
"""What can be drawn row by row, and which of its arguments is the size."""


class RowGenerator:
    """As `numpy.random.Generator`, for arrays whose first axis is the batch.

    Row i of what is drawn is what rollout i would have drawn alone, whoever shares the batch. The shape comes from
    `size=(batch, ...)` or from the arguments: an argument with as many axes as the result has a row for each rollout.
    """

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self._generators = generators

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _SIZE_AT:
            raise UsageError(f"rng.{name} cannot be drawn for a batch row by row: use one of {', '.join(_SIZE_AT)}")
        place = _SIZE_AT[name]

        def draw(*args: Any, size: Any = None, **kwargs: Any) -> Any:
            if len(args) > place + 1:
                raise UsageError(f"rng.{name}(): give the arguments after size by name")
            return self._draw(name, args[:place], kwargs, args[place] if len(args) > place else size)

        return draw

    def _draw(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], size: Any) -> Any:
        rows = len(self._generators)
        by_row = name != "choice"  # whose first argument is what to choose from
        shape = _as_shape(size)
        if size is None and by_row:
            shape = np.broadcast_shapes(*(np.shape(one) for one in (*args, *kwargs.values()) if _is_numeric(one)))
        if not shape or shape[0] != rows:
            raise UsageError(
                f"rng.{name}() with the shape {shape}, but {rows} rollouts wait together: draw with size=(batch, ...)"
            )

        def part(value: Any, row: int) -> Any:
            own = by_row and _is_numeric(value) and np.ndim(value) == len(shape) and len(value) == rows
            return np.asarray(value)[row : row + 1] if own else value

        def drawn(row: int) -> Any:
            named = {key: part(one, row) for key, one in kwargs.items()}
            return getattr(self._generators[row], name)(
                *(part(one, row) for one in args), **named, size=(1, *shape[1:])
            )

        return np.concatenate([drawn(row) for row in range(rows)])


def _as_shape(size: Any) -> tuple[int, ...]:
    if size is None:
        return ()
    return tuple(size) if np.iterable(size) else (int(size),)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, int | float | list | tuple | np.ndarray | np.generic)
