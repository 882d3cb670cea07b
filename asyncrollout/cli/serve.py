"""`serve`: environments for other processes and machines."""

import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
from cyclopts import Parameter

from asyncrollout.cli.terminal.logs import logging_to
from asyncrollout.cli.terminal.output import STOPPED, WHOLE, OutputParam
from asyncrollout.concurrency import task_group
from asyncrollout.dropin.vagen.allowed_envs import VagenAdmission
from asyncrollout.errors import UsageError
from asyncrollout.pool.pool import EnvPool
from asyncrollout.registry import allowed_env
from asyncrollout.service.access import gather_tokens
from asyncrollout.service.allowed_envs import registered_env
from asyncrollout.service.server import Caps, EnvServer

_CAPS = Caps()
_RESET_SECONDS = 120.0


async def serve(
    *,
    host: Annotated[
        str, Parameter(help="Address to listen on; any but loopback requires a token (default: 127.0.0.1).")
    ] = ("127.0.0.1"),
    port: Annotated[int, WHOLE, Parameter(help="Port to listen on; 0 picks a free one.", show_default=True)] = 8200,
    workers: Annotated[int | None, WHOLE, Parameter(help="Worker processes (default: one per core).")] = None,
    token: Annotated[
        str | None,
        Parameter(
            help="Token that clients must send, or TOKEN@UNIX-TIME, when it expires. Prefer $ASYNCROLLOUT_TOKEN."
        ),
    ] = None,
    token_file: Annotated[Path | None, Parameter(help="File with one such token per line.")] = None,
    allow_host: Annotated[
        tuple[str, ...],
        Parameter(help="Another host name by which clients reach it without a token. Repeatable."),
    ] = (),
    data_dir: Annotated[
        Path | None, Parameter(help="Directory whose files env options may name (default: none).")
    ] = None,
    allow_import: Annotated[bool, Parameter(help="Let clients open envs as module:Class, which runs code.")] = False,
    max_envs: Annotated[
        int, WHOLE, Parameter(help="Maximum number of open environments.", show_default=True)
    ] = _CAPS.envs,
    max_requests: Annotated[
        int, WHOLE, Parameter(help="Maximum number of concurrent requests.", show_default=True)
    ] = _CAPS.requests,
    max_body: Annotated[
        int, WHOLE, Parameter(help="Maximum size of a request body, in bytes.", show_default=True)
    ] = _CAPS.body_bytes,
    idle_seconds: Annotated[
        float, Parameter(help="Close an environment that is unused for this long.", show_default=True)
    ] = _CAPS.idle_seconds,
    step_timeout: Annotated[
        float,
        Parameter(help="Time limit of a step, in seconds; a reset has 120, or this if it is more.", show_default=True),
    ] = 60.0,
    grace: Annotated[
        float, Parameter(help="Seconds that calls in flight have to finish on shutdown.", show_default=True)
    ] = 10.0,
    log_dir: Annotated[Path | None, Parameter(help="Directory for events.jsonl (default: not written).")] = None,
    output: OutputParam,
) -> int:
    """Serve environments to other processes and machines over HTTP.

    Speaks the protocol of VAGEN's environment server, and that of asyncrollout.RemoteEnvPool. By default only this
    machine can connect, and only registered and Gymnasium environments can be opened.

    Example: asyncrollout serve

    Example: ASYNCROLLOUT_TOKEN=... asyncrollout serve --host 0.0.0.0 --data-dir videos
    """
    if not 0 <= port < 65536:
        raise UsageError(f"port={port} is not a number from 0 to 65535")
    tokens = gather_tokens(token, token_file)
    find = partial(allowed_env, allow_import=True) if allow_import else registered_env
    pool = EnvPool(workers, step_timeout=step_timeout, reset_timeout=max(_RESET_SECONDS, step_timeout))
    server = EnvServer(
        pool,
        host,
        port,
        tokens=tokens,
        allow_hosts=allow_host,
        admission=VagenAdmission(find=find, data_dir=data_dir, allow_import=allow_import),
        caps=Caps(max_envs, max_requests, max_body, idle_seconds),
        grace=grace,
    )
    with (
        logging_to(log_dir, console=not output.quiet, secrets=[token.secret.decode() for token in tokens]),
        anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals,
    ):
        async with task_group() as watching:
            async with pool, server:
                whom = "to clients with a token" if tokens else "to this machine only"
                output.show(f"Serving on {server.url}, {whom}. Press Ctrl-C to stop.")
                output.record({"event": "serving", "url": server.url, "pid": os.getpid()})
                await anext(signals)
                output.say(f"stopping: calls in flight have {grace:g} s; press Ctrl-C again to stop at once")
                watching.start_soon(_hurry, signals, server)
            watching.cancel_scope.cancel()
    output.record({"event": "ended", "state": "stopped"})
    return STOPPED


async def _hurry(signals: AsyncIterator[signal.Signals], server: EnvServer) -> None:
    async for _ in signals:
        server.hurry()
