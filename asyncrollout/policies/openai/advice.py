"""What to do about a server that refuses a call: the key, the address or the model that it would take."""

import time
from urllib.parse import urlsplit

import aiohttp
import anyio
import msgspec

from asyncrollout.policies.openai.bodies import read_start
from asyncrollout.policies.openai.call import ApiKey
from asyncrollout.policies.openai.endpoint import Endpoint, HttpResponse
from asyncrollout.policies.openai.responses import UNREADABLE

_SECONDS = 5.0
_MOST_BYTES = 2**20
_MODELS_SHOWN = 10
_KEPT = 30.0  # seconds in which the same is said to all calls, without asking the server again
_NO_SUCH_CALL = ("/chat/completions", "/completions")


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_models = msgspec.json.Decoder(_Models)


class Advisor:
    """Looks for what was meant, at the server that refuses; once for many calls."""

    def __init__(self, model: str, key: ApiKey) -> None:
        self._model = model
        self._key = key
        self._asking = anyio.Lock()
        self._said: dict[tuple[Endpoint, int], tuple[float, str]] = {}

    async def advise(self, client: aiohttp.ClientSession | None, endpoint: Endpoint, answer: HttpResponse) -> str:
        """What to add to the server's own words; nothing if they must do."""
        status = answer.status
        if status in (401, 403):
            return f" ({self._key.origin})"
        if 300 <= status < 400:
            target = self._key.hidden(answer.headers.get("Location", ""))[:300]
            return f" (it redirects to {target!r}: give the address that answers itself as base_url)"
        is_of_model = status in (400, 422) and b"model" in answer.content
        if client is None or not (status == 404 or is_of_model):
            return ""
        async with self._asking:
            at, said = self._said.get((endpoint, status), (-_KEPT, ""))
            if time.monotonic() - at < _KEPT:
                return said
            with anyio.move_on_after(_SECONDS):
                said = await self._look(client, endpoint)
            self._said[endpoint, status] = time.monotonic(), said
        return said

    async def _look(self, client: aiohttp.ClientSession, endpoint: Endpoint) -> str:
        known = await self._models(client, endpoint.url)
        if known is None:
            for url in _other_addresses(endpoint.url):
                if await self._models(client, url) is not None:
                    return f" (such a server answers at another address: give base_url={_shown(url)!r})"
            return ""
        if not known or self._model in known:
            return ""
        more = f" and {len(known) - _MODELS_SHOWN} more" if len(known) > _MODELS_SHOWN else ""
        names = ", ".join(repr(self._key.hidden(name)[:200]) for name in known[:_MODELS_SHOWN])
        return f" (model={self._model!r} is not there; available: {names}{more})"

    async def _models(self, client: aiohttp.ClientSession, url: str) -> list[str] | None:
        """Those of a server; none if it does not list them, and None if there is no such server."""
        try:
            async with client.get(f"{url}/models", headers=self._key.headers, allow_redirects=False) as response:
                if response.status in (401, 403):
                    return []
                if response.status != 200:
                    return None
                return [model.id for model in _models.decode(await read_start(response, _MOST_BYTES)).data]
        except (aiohttp.ClientError, OSError, *UNREADABLE):
            return None


def _other_addresses(url: str) -> list[str]:
    """Where the server might be if its address was given without /v1, or with the path of a call."""
    parts = urlsplit(url)
    cut = next((url.removesuffix(path) for path in _NO_SUCH_CALL if url.endswith(path)), None)
    host = f"{parts.scheme}://{parts.netloc}"
    found = [*([cut] if cut else []), f"{cut or url}/v1", f"{host}/v1", f"{host}/api/v1"]
    return [address for address in dict.fromkeys(found) if address != url]


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
