"""Servers that can be told of new weights: the pages of vLLM and SGLang for it."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import aiohttp
import anyio

from asyncrollout.policies.codec import ServerKind
from asyncrollout.policies.endpoint import Endpoint

PauseMode = Literal["wait", "abort", "continue"]

_SECONDS = 60.0


class Page(NamedTuple):
    path: str
    modes: Mapping[str, str] = {}
    in_query: bool = False


PAUSES: Mapping[ServerKind, Page] = {
    "vllm": Page("/pause", {"wait": "wait", "abort": "abort", "continue": "keep"}, in_query=True),
    "sglang": Page("/pause_generation", {"wait": "in_place", "abort": "abort", "continue": "in_place"}),
}
RESUMES: Mapping[ServerKind, Page] = {"vllm": Page("/resume"), "sglang": Page("/continue_generation")}


async def post_page(
    client: aiohttp.ClientSession, endpoint: Endpoint, page: Page, mode: PauseMode | None, headers: Mapping[str, str]
) -> bool:
    """Whether the server took it; a server without the page (vLLM has it in its development mode only) does not."""
    said: dict[str, Any] = {} if mode is None else {"mode": page.modes[mode]}
    params, body = (said, None) if page.in_query else (None, said)
    try:
        with anyio.fail_after(_SECONDS):
            url = f"{endpoint.root}{page.path}"
            async with client.post(url, headers=headers, params=params, json=body) as response:
                return response.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False
