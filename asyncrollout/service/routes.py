"""The batch calls over HTTP, with VAGEN's endpoints and bodies, for any number of envs and for one."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from asyncrollout.errors import UsageError
from asyncrollout.service.allowed_envs import Admission
from asyncrollout.service.batches import EnvService
from asyncrollout.service.bodies import RefusedError, answer, read_body
from asyncrollout.service.observations import to_json

B = TypeVar("B", bound=msgspec.Struct)
Ids = list[str]


class Configs(msgspec.Struct):
    ids2configs: dict[str, dict[str, Any]]


class SeedsBody(msgspec.Struct):
    ids2seeds: dict[str, Any]


class Actions(msgspec.Struct):
    ids2actions: dict[str, Any]


class Named(msgspec.Struct):
    env_ids: Ids


class NamedOrAll(msgspec.Struct):
    env_ids: Ids | None


class Split(msgspec.Struct):
    env_ids: Ids
    split: str = "train"


class Embedder(msgspec.Struct):
    env_ids: Ids
    service_url: str = "http://localhost:5000"


class OneSeed(msgspec.Struct):
    seed: Any = None
    extra_info: Any = None


class OneAction(msgspec.Struct):
    action: Any


class Routes:
    """`reserve` keeps room for new envs while they are built; a request names at most `most_ids`.

    `shown` is an error's text as clients may see it.
    """

    def __init__(
        self,
        service: EnvService,
        admission: Admission,
        reserve: Callable[[int], Any],
        shown: Callable[[str], str],
        *,
        largest_body: int,
        most_ids: int,
    ) -> None:
        self._service = service
        self._admission = admission
        self._reserve = reserve
        self._shown = shown
        self._largest = largest_body
        self._most_ids = most_ids
        self._making: set[str] = set()

    def table(self) -> list[web.RouteDef]:
        service = self._service
        return [
            web.post("/environments", self._create),
            self._batch("/batch/reset", SeedsBody, "results", lambda body: self._reset(body.ids2seeds)),
            self._batch("/batch/step", Actions, "results", lambda body: self._step(body.ids2actions)),
            self._batch("/batch/reward", Named, "rewards", lambda body: self._rewards(body.env_ids)),
            self._batch(
                "/batch/system_prompt",
                Named,
                "system_prompts",
                lambda body: service.get_system_prompts_batch(body.env_ids),
            ),
            self._batch(
                "/batch/split_size",
                Split,
                "split_sizes",
                lambda body: service.get_split_size_batch(body.env_ids, body.split),
            ),
            self._batch("/batch/embedder", Embedder, "statuses", self._init_embedder),
            self._batch("/batch/close", NamedOrAll, "status", self._close),
            web.post("/reset/{env_id}", self._reset_one),
            web.post("/step/{env_id}", self._step_one),
            web.get("/reward/{env_id}", self._reward_one),
            web.get("/system_prompt/{env_id}", self._system_prompt_one),
            web.delete("/close/{env_id}", self._close_one),
        ]

    def _batch(self, path: str, kind: type[B], result: str, work: Callable[[B], Awaitable[Any]]) -> web.RouteDef:
        async def handle(request: web.Request) -> web.Response:
            return answer(request, {result: await work(await self._read(request, kind))})

        return web.post(path, handle)

    async def _read(self, request: web.Request, kind: type[B]) -> B:
        body = await read_body(request, kind, self._largest)
        for value in msgspec.structs.astuple(body):
            if isinstance(value, dict | list) and len(value) > self._most_ids:
                raise RefusedError(
                    413, f"{len(value):,} envs in a request: at most {self._most_ids:,} are accepted at once"
                )
        return body

    async def _create(self, request: web.Request) -> web.Response:
        """Build all envs that can be built; if none can, the request is refused."""
        configs = (await self._read(request, Configs)).ids2configs
        errors: dict[str, str] = {}
        admitted: dict[str, Any] = {}
        for env_id, config in configs.items():
            try:
                if env_id in self._service.environments or env_id in self._making:
                    errors[env_id] = f"Environment {env_id} exists already: close it first, or choose another id"
                    continue  # not noted as a failure: the env exists
                spec, kwargs = self._admission.admit(config.get("env_name"), config.get("env_config") or {})
                admitted[env_id] = {"env_name": spec, "env_config": kwargs}
            except UsageError as error:
                errors[env_id] = str(error)
                self._service.note_failure(env_id, str(error))
        with self._reserve(len(admitted)):
            self._making |= admitted.keys()
            try:
                await self._service.create_environments_batch(admitted)
            finally:
                self._making -= admitted.keys()
        missing = [env_id for env_id in admitted if env_id not in self._service.environments]
        errors |= {env_id: self._service.failures.get(env_id, "it was closed at once") for env_id in missing}
        errors = {env_id: self._shown(text) for env_id, text in errors.items()}
        if configs and len(errors) == len(configs):
            text = "; ".join(f"{env_id}: {text}" for env_id, text in errors.items())[:2000]
            return answer(request, {"success": False, "error": text, "errors": errors}, status=400)
        return answer(request, {"success": True, "errors": errors})

    async def _reset(self, ids2seeds: dict[str, Any]) -> dict[str, Any]:
        results = await self._service.reset_batch(ids2seeds)
        return {env_id: (observation, self._told(observation, info)) for env_id, (observation, info) in results.items()}

    async def _step(self, ids2actions: dict[str, Any]) -> dict[str, Any]:
        results = await self._service.step_batch(ids2actions)
        return {
            env_id: (observation, to_json(reward), done, self._told(observation, info))
            for env_id, (observation, reward, done, info) in results.items()
        }

    def _told(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        """An env's own info unchanged; an error of the service, which has no observation, as clients may see it."""
        return info if observation else {"error": self._shown(info["error"])}

    async def _rewards(self, env_ids: Ids) -> dict[str, Any]:
        rewards = await self._service.compute_reward_batch(env_ids)
        return {env_id: to_json(reward) for env_id, reward in rewards.items()}

    async def _init_embedder(self, body: Embedder) -> dict[str, dict[str, Any]]:
        self._admission.admit_value("service_url", body.service_url)
        statuses = await self._service.init_embedder_batch(body.env_ids, body.service_url)
        for status in statuses.values():
            if isinstance(status.get("error"), str):
                status["error"] = self._shown(status["error"])
        return statuses

    async def _close(self, body: NamedOrAll) -> str:
        await self._service.close_batch(body.env_ids)
        return "success"

    async def _reset_one(self, request: web.Request) -> web.Response:
        env_id = self._known(request)
        given = OneSeed()
        if request.can_read_body:
            given = await read_body(request, OneSeed, self._largest)
        results = await self._reset({env_id: {"seed": given.seed, "extra_info": given.extra_info}})
        observation, info = results[env_id]
        return _one(request, {"observation": observation, "info": info})

    async def _step_one(self, request: web.Request) -> web.Response:
        env_id = self._known(request)
        given = await read_body(request, OneAction, self._largest)
        results = await self._step({env_id: given.action})
        observation, reward, done, info = results[env_id]
        return _one(request, {"observation": observation, "reward": reward, "done": done, "info": info})

    async def _reward_one(self, request: web.Request) -> web.Response:
        env_id = self._known(request)
        return answer(request, {"reward": (await self._rewards([env_id]))[env_id]})

    async def _system_prompt_one(self, request: web.Request) -> web.Response:
        env_id = self._known(request)
        return answer(request, {"system_prompt": (await self._service.get_system_prompts_batch([env_id]))[env_id]})

    async def _close_one(self, request: web.Request) -> web.Response:
        await self._service.close_batch([self._known(request)])
        return answer(request, {"status": "success"})

    def _known(self, request: web.Request) -> str:
        env_id = request.match_info["env_id"]
        try:
            self._service.find(env_id)
        except UsageError as error:
            raise RefusedError(404, str(error)) from error
        return env_id


def _one(request: web.Request, content: dict[str, Any]) -> web.Response:
    """The answer for a single env; its error has a status, since it is not a result in a batch."""
    if not content["observation"]:  # an env may have an `error` in its own info
        raise RefusedError(422, str(content["info"]["error"]))
    return answer(request, content)
