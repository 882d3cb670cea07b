"""`serve`: environments for other processes and machines."""

import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
from cyclopts import Parameter

from asyncrollout.cli.app import STOPPED, WHOLE, Told
from asyncrollout.cli.terminal.logs import logging_to
from asyncrollout.concurrency import task_group
from asyncrollout.errors import UsageError
from asyncrollout.pool.pool import EnvPool
from asyncrollout.registry import allowed_env
from asyncrollout.service.access import gather_tokens
from asyncrollout.service.admission import Admission, registered_env
from asyncrollout.service.server import Caps, EnvServer

_CAPS = Caps()


async def serve(
    *,
    host: Annotated[str, Parameter(help="The address to listen on; any but this machine's own demands a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, WHOLE, Parameter(help="The port to listen on; 0 is any that is free.", show_default=True)
    ] = 8200,
    workers: Annotated[int | None, WHOLE, Parameter(help="Worker processes; one for each core, if not given.")] = None,
    token: Annotated[
        str | None,
        Parameter(help="What clients must send, or TOKEN@UNIX-TIME, when it expires. Better in $ASYNCROLLOUT_TOKEN."),
    ] = None,
    token_file: Annotated[Path | None, Parameter(help="A file with one such token on each line.")] = None,
    allow_host: Annotated[
        tuple[str, ...],
        Parameter(help="Another name by which clients reach it, if there is no token; once for each."),
    ] = (),
    data_dir: Annotated[
        Path | None, Parameter(help="The directory that options of envs may name files in; none, if not given.")
    ] = None,
    allow_import: Annotated[bool, Parameter(help="Let clients open envs by module:Class, which runs code.")] = False,
    max_envs: Annotated[int, WHOLE, Parameter(help="Environments open at a time.", show_default=True)] = _CAPS.envs,
    max_requests: Annotated[int, WHOLE, Parameter(help="Requests at a time.", show_default=True)] = _CAPS.requests,
    max_body: Annotated[int, WHOLE, Parameter(help="Bytes of a request's body.", show_default=True)] = _CAPS.body_bytes,
    idle_seconds: Annotated[
        float, Parameter(help="After which an environment that nobody uses is closed.", show_default=True)
    ] = _CAPS.idle_seconds,
    step_timeout: Annotated[float, Parameter(help="Seconds that a step may take.", show_default=True)] = 60.0,
    grace: Annotated[
        float, Parameter(help="Seconds that calls under way have when the server is stopped.", show_default=True)
    ] = 10.0,
    log_dir: Annotated[Path | None, Parameter(help="Where to write events.jsonl; nowhere, if not given.")] = None,
    output: Told,
) -> int:
    """Serve until Ctrl-C."""
    if not 0 <= port < 65536:
        raise UsageError(f"port={port} is not a number from 0 to 65535")
    tokens = gather_tokens(token, token_file)
    find = partial(allowed_env, allow_import=True) if allow_import else registered_env
    pool = EnvPool(workers, step_timeout=step_timeout)
    server = EnvServer(
        pool,
        host,
        port,
        tokens=tokens,
        allow_hosts=allow_host,
        admission=Admission(find=find, data_dir=data_dir, allow_import=allow_import),
        caps=Caps(max_envs, max_requests, max_body, idle_seconds),
        grace=grace,
    )
    with (
        logging_to(log_dir, console=not output.quiet, secrets=[token.secret.decode() for token in tokens]),
        anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
    ):
        async with task_group() as watching:
            async with pool, server:
                told = "to whoever has a token" if tokens else "to this machine alone"
                output.show(f"Serving on {server.url}, {told}. Ctrl-C stops it.")
                output.record({"event": "serving", "url": server.url, "pid": os.getpid()})
                await anext(signals)
                output.say(f"stopping: calls under way have {grace:g} s; again to stop at once")
                watching.start_soon(_hurry, signals, server)
            watching.cancel_scope.cancel()
    output.record({"event": "ended", "state": "stopped"})
    return STOPPED


async def _hurry(signals: AsyncIterator[signal.Signals], server: EnvServer) -> None:
    async for _ in signals:
        server.hurry()
