"""This program's connection to a Ray cluster, which all that needs Ray shares.

A program has one connection. If nobody has made it, the first lease makes it, and the last one that is given back ends
it; a connection that the program made itself (`ray.init`) is used and left alone.
"""

import logging
import os
import socket
import threading
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from asyncrollout.errors import MissingExtraError, PoolError, UsageError

_BEFORE_IMPORT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run`, each node would build the environment again
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what it will be anyway; without it, Ray warns
}
_ADDRESS = "RAY_ADDRESS"
_QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
_ANSWER_LIMIT = 10.0  # seconds
_CLIENT = (
    "a Ray Client connection (ray://) cannot be used: run the program on a node of the cluster, as with "
    "`ray job submit`, and leave address= out"
)


class ClusterLease:
    """A share of this program's connection to a Ray cluster. `ray` is the module."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self._is_held = True

    @classmethod
    async def take(cls, address: str | None = None) -> "ClusterLease":
        """Connect, unless this program is connected. Starts a cluster for it alone if the address is "local".

        Without an address: the connection there is, else $RAY_ADDRESS, else "local".
        """
        return cls(await anyio.to_thread.run_sync(partial(_connect, address)))

    async def give_back(self) -> None:
        """Safe to call again."""
        if self._is_held:
            self._is_held = False
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_disconnect)

    @property
    def node_ip(self) -> str:
        """This program's node, as others reach it."""
        address: str = self.ray.util.get_node_ip_address()
        return address

    @property
    def head(self) -> str:
        """The address of the head node's own service."""
        address: str = self.ray.get_runtime_context().gcs_address
        return address

    @property
    def node_id(self) -> str:
        node: str = self.ray.get_runtime_context().get_node_id()
        return node


async def is_answering(address: str, limit: float) -> bool:
    """Whether anything listens there."""
    host, _, port = address.rpartition(":")
    with anyio.move_on_after(limit):
        try:
            stream = await anyio.connect_tcp(host.strip("[]"), int(port))
        except (OSError, ValueError):
            return False
        await stream.aclose()
        return True
    return False


class _SharedConnection:
    """Of this process, to a cluster."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.made_for: str | None = None  # the address, if it was made here
        self.print: Any = None  # Ray's own function, while ours is in its place


_connection = _SharedConnection()


def import_ray() -> Any:
    """The module, imported so that it changes nothing about the program."""
    for name, value in _BEFORE_IMPORT.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: PLC0415 (it takes a second, and the core does without)
    except ImportError as error:
        raise MissingExtraError(f"Ray cannot be imported ({error}): pip install 'asyncrollout[ray]'") from error
    return ray


def _connect(address: str | None) -> Any:
    if address is not None and (not isinstance(address, str) or not address):
        raise UsageError(f'address={address!r} is not the address of a Ray cluster: "host:6379", "auto" or "local"')
    if address is not None and "://" in address:
        raise UsageError(f"address={address!r}: {_CLIENT}")
    ray = import_ray()
    with _connection.lock:
        if ray.is_initialized():
            _check_same(ray, address)
        else:
            _connection.users = 0  # of a connection that the program has ended itself
            _connection.made_for = _init(ray, address)
        _connection.users += 1
    return ray


def _init(ray: Any, address: str | None) -> str:
    chosen = address or os.environ.get(_ADDRESS) or "local"  # never what the machine's last cluster left behind
    if "://" in chosen:
        raise UsageError(f"${_ADDRESS}={chosen}: {_CLIENT}")
    try:
        _check_answers(chosen)
        ray.init(chosen, **_QUIET)
    except Exception as error:
        what = "a Ray cluster cannot be started here" if chosen == "local" else f"no Ray cluster answers at {chosen}"
        raise PoolError(f"{what}: {error}") from error
    _keep_stdout_clean(ray)
    return chosen


def _check_answers(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_LIMIT).close()


def _check_same(ray: Any, address: str | None) -> None:
    """Whether the connection that there is leads to this address."""
    if address in (None, "auto", _connection.made_for):
        return
    current: str = ray.get_runtime_context().gcs_address
    if address is not None and not _leads_to(address, current):
        raise UsageError(
            f"address={address!r}: this program is connected to the Ray cluster at {current}, and a program has one "
            "connection: leave address= out, or call ray.shutdown() first"
        )


def _leads_to(address: str, current: str) -> bool:
    (host, _, port), (current_host, _, current_port) = address.rpartition(":"), current.rpartition(":")
    if port != current_port:
        return False
    try:
        found = socket.gethostbyname(host)
    except OSError:
        return False
    return found == current_host or found.startswith("127.")


def _disconnect() -> None:
    with _connection.lock:
        _connection.users -= 1
        if _connection.users or _connection.made_for is None:
            return
        _connection.made_for = None
        ray = import_ray()
        if ray.is_initialized():
            ray.shutdown()
        if _connection.print is not None:
            ray._private.worker.print_to_stdstream, _connection.print = _connection.print, None  # noqa: SLF001


def _keep_stdout_clean(ray: Any) -> None:
    """Ray prints what its nodes report to stdout, whatever it is asked: a program's own output has its place there."""
    module = ray._private.worker  # noqa: SLF001 (nothing else reaches it)
    printing = getattr(module, "print_to_stdstream", None)
    if printing is None:
        return

    def print_to_stderr(data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        printing({**data, "is_err": True}, *args, **kwargs)

    _connection.print, module.print_to_stdstream = printing, print_to_stderr
