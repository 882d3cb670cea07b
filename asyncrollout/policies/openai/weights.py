"""Servers that can be told of new weights: the pages of vLLM and SGLang for it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
import anyio

from asyncrollout.logs import get_logger
from asyncrollout.policies.openai.codec import ServerKind
from asyncrollout.policies.openai.endpoint import Endpoint
from asyncrollout.types import PauseMode

log = get_logger(__name__)

_SECONDS = 30.0


class WeightEndpoint(NamedTuple):
    path: str
    modes: Mapping[str, str] = {}
    in_query: bool = False


PAUSES: Mapping[ServerKind, WeightEndpoint] = {
    "vllm": WeightEndpoint("/pause", {"wait": "wait", "abort": "abort", "continue": "keep"}, in_query=True),
    "sglang": WeightEndpoint("/pause_generation", {"wait": "in_place", "abort": "abort", "continue": "in_place"}),
}
RESUMES: Mapping[ServerKind, WeightEndpoint] = {
    "vllm": WeightEndpoint("/resume"),
    "sglang": WeightEndpoint("/continue_generation"),
}


async def post_page(
    client: aiohttp.ClientSession,
    endpoint: Endpoint,
    page: WeightEndpoint,
    mode: PauseMode | None,
    headers: Mapping[str, str],
) -> None:
    """Tell the server; one that does not take it (vLLM has the page in its development mode only) is logged."""
    wish: dict[str, Any] = {} if mode is None else {"mode": page.modes[mode]}
    params, body = (wish, None) if page.in_query else (None, wish)
    try:
        with anyio.fail_after(_SECONDS):
            url = f"{endpoint.root}{page.path}"
            async with client.post(url, headers=headers, params=params, json=body, allow_redirects=False) as response:
                if response.status == 200:
                    return
                said = f"HTTP {response.status}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        said = f"{type(error).__name__}: {error}"
    log.warning("server_not_told_of_weights", endpoint=endpoint.name, page=page.path, said=said)
