"""What `Rollouts` returns to be awaited or iterated over; doing the other raises an error that shows how."""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

from asyncrollout.errors import UsageError

T = TypeVar("T")


class HintedIterator(Generic[T]):
    """An async iterator over the results of a call, until it raises `StopAsyncIteration`."""

    def __init__(self, take: Callable[[], Awaitable[T]], usage: str) -> None:
        self._take = take
        self._usage = usage

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await self._take()

    def __iter__(self) -> NoReturn:
        raise UsageError(f"this is an async iterator: write `{self._usage}`")

    def __await__(self) -> NoReturn:
        raise UsageError(f"this is an async iterator, which cannot be awaited: write `{self._usage}`")


class HintedCoroutine(Coroutine[Any, Any, T]):
    """A coroutine with one result."""

    def __init__(self, inner: Coroutine[Any, Any, T], usage: str) -> None:
        self._inner = inner
        self._usage = usage

    def __await__(self) -> Generator[Any, Any, T]:
        return self._inner.__await__()

    def send(self, value: Any, /) -> Any:
        return self._inner.send(value)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None, /) -> Any:
        return self._inner.throw(kind) if value is None and trace is None else self._inner.throw(kind, value, trace)

    def close(self) -> None:
        self._inner.close()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name!r} belongs to the result, which was not awaited: write `{self._usage}`")

    def __aiter__(self) -> NoReturn:
        self._refuse()

    def __iter__(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        self._inner.close()
        raise UsageError(f"this is one result, not an iterator: write `{self._usage}`")
