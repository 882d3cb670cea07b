"""What kind of server answers, and whether it is well."""

import time
from collections.abc import Mapping

import aiohttp
import anyio
import msgspec

from asyncrollout.policies.openai.bodies import read_start
from asyncrollout.policies.openai.call import ApiKey
from asyncrollout.policies.openai.codec import ServerKind
from asyncrollout.policies.openai.endpoint import Endpoint, HttpResponse
from asyncrollout.policies.openai.responses import refusal

_SECONDS = 5.0
_SIGNS: dict[ServerKind, str] = {"vllm": "/version", "sglang": "/get_server_info", "llamacpp": "/props"}
_NO_SUCH_PAGE = frozenset({404, 405, 501})


async def kind_of_server(client: aiohttp.ClientSession, root: str, key: ApiKey) -> ServerKind | HttpResponse:
    """By the pages that only this kind has; strict OpenAI, if there is none of them.

    A refusal says nothing of the kind: it is what the call itself is answered with.
    """
    for kind, page in _SIGNS.items():
        answer = await get(client, f"{root}{page}", key.headers)
        if answer.status == 200:
            return kind
        if answer.status not in _NO_SUCH_PAGE:
            told = refusal(key.hidden_in(answer.content))
            said = f"GET {page} (give OpenAIPolicy(kind=...), or policy.server, if it tells no kind): {told}"
            return answer._replace(content=msgspec.json.encode({"message": said}))
    return "openai"


async def is_healthy(client: aiohttp.ClientSession, endpoint: Endpoint, headers: Mapping[str, str]) -> bool:
    """Not every server has a page for its health; whatever answers a question about it at all is up, but for 5xx."""
    try:
        return (await get(client, f"{endpoint.root}/health", headers)).status < 500
    except (aiohttp.ClientError, OSError):
        return False


async def get(client: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> HttpResponse:
    """A page; of one that is there, nothing is read. No answer is an error of aiohttp or of the system."""
    with anyio.fail_after(_SECONDS):
        async with client.get(url, headers=headers, allow_redirects=False) as response:
            first_byte = time.monotonic()
            content = b"" if response.status == 200 else await read_start(response)
            return HttpResponse(response.status, response.headers, content, first_byte)
