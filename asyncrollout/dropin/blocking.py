"""Objects with coroutines for synchronous callers: the same methods, which wait, and the same attributes."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from asyncrollout.dropin.portal import Opened

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Blocking(ABC, Generic[T]):
    """Base class: an object behind synchronous calls.

    `reset = blocking(Inner.reset)` and `seed = Forwarded[int]()` in the class body say what callers can use.
    """

    _target: T

    @abstractmethod
    def _run(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a coroutine function of the object and wait for its result."""


class OpenedBlocking(Blocking[T]):
    """Opens the object on the shared event loop; left by `close()`, as garbage, or when the program ends."""

    def __init__(self, target: AbstractAsyncContextManager[T]) -> None:
        self._opened = Opened(target)
        self._target = self._opened.value

    def _run(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._opened.run(work, *args, **kwargs)

    def close(self) -> None:
        self._opened.close()


@overload
def blocking(method: Callable[Concatenate[T, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]: ...


@overload
def blocking(method: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[Any, P], R]: ...


def blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a `Blocking` class that calls this one of the object behind it, and waits if it is a coroutine."""
    name, waits = method.__name__, iscoroutinefunction(method)

    @wraps(method)
    def call(self: Blocking[Any], *args: Any, **kwargs: Any) -> Any:
        work = getattr(self._target, name)  # the object's class may override it
        return self._run(work, *args, **kwargs) if waits else work(*args, **kwargs)

    return call


class Forwarded(Generic[T]):
    """An attribute of a `Blocking` class that is the attribute of the same name of the object behind it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "Forwarded[T]": ...

    @overload
    def __get__(self, instance: Blocking[Any], owner: type) -> T: ...

    def __get__(self, instance: Blocking[Any] | None, owner: type) -> "T | Forwarded[T]":
        if instance is None:
            return self
        value: T = getattr(instance._target, self._name)  # noqa: SLF001
        return value

    def __set__(self, instance: Blocking[Any], value: T) -> None:
        setattr(instance._target, self._name, value)  # noqa: SLF001
