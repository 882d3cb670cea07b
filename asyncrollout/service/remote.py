"""`RemoteEnvPool`: a pool whose envs live at servers, on this machine or others."""

import os
import secrets
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup

from asyncrollout import checks
from asyncrollout.errors import PoolError, UnknownEnvError, UsageError
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.pool.home import Backend, Home
from asyncrollout.pool.hosted import Opening
from asyncrollout.pool.pool import EnvPool
from asyncrollout.protocols import Recorded
from asyncrollout.registry import EnvSpec
from asyncrollout.service.access import VARIABLE
from asyncrollout.service.host import Host
from asyncrollout.types import TextOptions, WorkerStats


class RemoteEnvPool(EnvPool):
    """An `EnvPool` whose envs live at `asyncrollout serve`, at one address or several; all else is the same.

    An env is opened by a name that the server knows. `token` defaults to $ASYNCROLLOUT_TOKEN. A lost connection is
    tried again for `patience` seconds, and calls under way are never made twice. An env whose server is gone, or has
    forgotten it, is played again to where it was, there or elsewhere, as after the death of a worker; if no server is
    left, that is a `PoolError`.
    """

    def __init__(
        self,
        url: str | list[str] | tuple[str, ...],
        *,
        token: str | None = None,
        patience: float = 10.0,
        max_restarts: int = 10,
    ) -> None:
        self._urls = [checked_address(one) for one in (url if isinstance(url, list | tuple) else [url])]
        if not self._urls:
            raise UsageError("a remote pool needs the address of a server")
        checks.seconds("patience", patience)
        super().__init__(len(self._urls), max_restarts=max_restarts)
        self._token = os.environ.get(VARIABLE) if token is None else token
        self._patience = patience

    def _make_backend(self) -> Backend:
        client_id = secrets.token_hex(16)
        return Hosts(
            [
                Host(rank, url, client_id=client_id, token=self._token, patience=self._patience)
                for rank, url in enumerate(self._urls)
            ]
        )

    def find(self, spec_or_name: EnvSpec | str) -> EnvSpec:
        """What is known here of an env; the server may know more of them."""
        try:
            return super().find(spec_or_name)
        except UnknownEnvError:
            return EnvSpec(name=str(spec_or_name), factory=str(spec_or_name))

    def open(
        self,
        spec_or_name: EnvSpec | str,
        /,
        *,
        text: bool | None = None,
        worker: int | None = None,
        beside: EnvHandle | None = None,
        expert: bool = False,
        record: Recorded | None = None,
        **env_kwargs: Any,
    ) -> EnvHandle:
        """An env that the server knows by this name; `worker` is the number of the server that it is to live at.

        `beside` has it begin at the server of another env.
        """
        self._placement.check_open()
        spec = self.find(spec_or_name)
        if record is not None:
            raise UsageError(f"env {spec.name!r} lives at a server: envs are filmed by the process that they live in")
        given = {"text": text, "expert": expert or None}
        kwargs = {**spec.kwargs, **env_kwargs, **{key: value for key, value in given.items() if value is not None}}
        self._check_rank(spec.name, worker)
        there = EnvSpec(name=spec.name, factory=spec.name, kwargs=kwargs, replayable=spec.replayable)
        return self._handle(Opening(there, text=False, expert=False, options=TextOptions()), worker, beside=beside)

    def _lives_on_loop(self, opening: Opening, pinned: int | None) -> bool:  # noqa: ARG002
        return False


class Hosts:
    """The servers of a pool, as its backend."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts

    @property
    def homes(self) -> Sequence[Home]:
        return [host for host in self._hosts if host.usable]

    async def start(self, tasks: TaskGroup) -> None:
        for host in self._hosts:
            await tasks.start(host.run)

    async def stop(self) -> None:
        async with anyio.create_task_group() as tasks:
            for host in self._hosts:
                tasks.start_soon(host.close)

    async def wait_usable(self, rank: int | None) -> Sequence[Home]:
        usable = [host for host in self._hosts if host.usable and rank in (None, host.rank)]
        if usable:
            return usable
        lost = self._hosts if rank is None else [self._hosts[rank]]
        raise PoolError("no server is left: " + "; ".join(str(host.trouble) for host in lost))

    def stats(self) -> list[WorkerStats]:
        return [host.stats() for host in self._hosts]

    def recent_seconds(self) -> list[float]:
        return [seconds for host in self._hosts for seconds in host.clock.recent()]


def checked_address(url: Any) -> str:
    """The address of a server, without a slash at its end; what is none is refused."""
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r:.200} is no address of a server: write it as http://host:8200")
    if parts.username or parts.password or parts.query:
        raise UsageError(f"the address of {parts.hostname} holds more than host and port: a token is given by token=")
    return str(url).rstrip("/")
