"""What kind of server answers, and whether it is well."""

from collections.abc import Mapping

import aiohttp
import anyio

from asyncrollout.policies.codec import ServerKind
from asyncrollout.policies.endpoint import Endpoint

_SECONDS = 5.0
_SIGNS: dict[ServerKind, str] = {"vllm": "/version", "sglang": "/get_server_info", "llamacpp": "/props"}


async def kind_of_server(client: aiohttp.ClientSession, root: str, headers: Mapping[str, str]) -> ServerKind | None:
    """By the pages that only this kind has; strict OpenAI, if there is none of them. None if it does not answer."""
    for kind, page in _SIGNS.items():
        status = await _status(client, f"{root}{page}", headers)
        if status is None or status >= 500:
            return None
        if status == 200:
            return kind
    return "openai"


async def is_healthy(client: aiohttp.ClientSession, endpoint: Endpoint, headers: Mapping[str, str]) -> bool:
    """Not every server has a page for its health; whatever answers a question about it at all is up, but for 5xx."""
    status = await _status(client, f"{endpoint.root}/health", headers)
    return status is not None and status < 500


async def _status(client: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> int | None:
    try:
        with anyio.fail_after(_SECONDS):
            async with client.get(url, headers=headers, allow_redirects=False) as response:
                return response.status
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
