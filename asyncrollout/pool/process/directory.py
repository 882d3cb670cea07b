"""The pool's private directory: sockets, pages and arrays live in it, and it is always removed."""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from anyio.abc import Process

from asyncrollout.errors import PoolError

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (only a directory of our own is used)
_JANITOR = 'read -r _; rm -rf -- "$1"'


@asynccontextmanager
async def private_directory() -> AsyncIterator[Path]:
    """In memory where there is such a place. The janitor, a shell asleep on our pipe, removes it if we are killed."""
    directory = _new_path()
    with anyio.CancelScope(shield=True):
        janitor = await _start_janitor(directory)
    try:
        try:
            directory.mkdir(mode=0o700)
        except OSError as error:
            raise PoolError(f"the pool's private directory cannot be made: {error}") from error
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if janitor is not None:
            with anyio.CancelScope(shield=True):
                await janitor.aclose()


@contextmanager
def private_directory_of_thread() -> Iterator[Path]:
    """The same without an event loop."""
    directory = _new_path()
    janitor = _start_janitor_of_thread(directory)
    try:
        directory.mkdir(mode=0o700)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if janitor is not None:
            janitor.communicate()  # it ends as its input does


def _new_path() -> Path:
    base = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"asyncrollout-{os.getpid()}-{secrets.token_hex(8)}"


def _janitor_command(directory: Path) -> list[str]:
    return ["/bin/sh", "-c", _JANITOR, "janitor", str(directory)]


def _start_janitor_of_thread(directory: Path) -> "subprocess.Popen[bytes] | None":
    nothing = subprocess.DEVNULL
    try:
        return subprocess.Popen(  # noqa: S603 (our own text)
            _janitor_command(directory), stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True
        )
    except OSError:  # as below
        return None


async def _start_janitor(directory: Path) -> Process | None:
    try:
        return await anyio.open_process(
            _janitor_command(directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )
    except OSError:  # no shell: a killed pool may leave its directory
        return None
