"""Points that are seen through the pool: the same seed and actions give the same episode, whatever happens."""

import math
import os
import signal

from asyncrollout.protocols import Snapshots
from asyncrollout.testing.cases import Case, against
from asyncrollout.testing.direct import Direct
from asyncrollout.testing.points import Skipped, point
from asyncrollout.types import WorkerStats

_DETERMINE = (
    "draw from a numpy Generator that reset() makes anew from its seed; use no global random state, clock, hash() or "
    "order of a set"
)


@point(
    "reset() gives (observation, info) and step() (observation, reward, terminated, truncated, info)",
    "mend what the error says",
)
async def plays(case: Case) -> list[str]:
    return [str(episode.error) for episode in case.episodes if episode.error]


@point("a reward is a finite number", "return a float from step(), never NaN or infinity")
async def finite_rewards(case: Case) -> list[str]:
    return [
        f"seed {episode.seed}, step {turn}: {outcome.reward}"
        for episode in case.episodes
        for turn, outcome in enumerate(episode.outcomes)
        if not math.isfinite(outcome.reward)
    ]


@point("a fresh env gives the same episode from the same seed, on every backend", _DETERMINE)
async def same_when_fresh(case: Case) -> list[str]:
    seen = []
    for backend in case.pools:
        for episode in case.episodes:
            async with case.open(backend) as env:
                seen += [f"{backend}, {text}" for text in await case.replays(env, episode)]
    return seen


@point("a used env gives the same episode from the same seed", f"let reset() start from nothing; {_DETERMINE}")
async def same_when_used(case: Case) -> list[str]:
    seen = []
    for backend in case.pools:
        async with case.open(backend) as env:
            for left, episode in zip([*case.episodes[1:], case.episodes[0]], case.episodes, strict=True):
                await case.play(env, left.seed, left.actions[: left.half])
                seen += [f"{backend}, {text}" for text in await case.replays(env, episode)]
    return seen


@point("every worker gives the same episode from the same seed", _DETERMINE)
async def same_on_workers(case: Case) -> list[str]:
    seen = []
    for worker in _workers(case):
        async with case.open("process", worker=worker.rank) as env:
            for episode in case.episodes:
                seen += [f"worker {worker.rank}, {text}" for text in await case.replays(env, episode)]
    return seen


@point("a fork goes on like the original", "keep the env's state in the env, and none of it in its class or module")
async def fork(case: Case) -> list[str]:
    episode = case.episodes[0]
    if not case.spec.replayable and not await _offers_snapshots(case):
        raise Skipped("it is not replayable and has no snapshot()")
    seen = []
    for backend in case.pools:
        async with case.open(backend) as env:
            begun = await case.play(env, episode.seed, episode.actions[: episode.half])
            twin = await env.fork()
            for name, which in (("the fork", twin), ("the original", env)):
                outcomes = await case.go_on(which, episode.actions[episode.half :], begun)
                seen += [f"{backend}, {name}, {text}" for text in against(episode, outcomes)]
            await twin.close()
    return seen


@point("restore() brings back the state of snapshot()", "put all that step() reads into it, random generators included")
async def snapshots(case: Case) -> list[str]:
    if not await _offers_snapshots(case):
        raise Skipped("it has no snapshot() and restore()")
    episode = case.episodes[0]
    rest = episode.actions[episode.half :]
    seen = []
    for backend in case.pools:
        async with case.open(backend) as env, case.open(backend) as fresh:
            begun = await case.play(env, episode.seed, episode.actions[: episode.half])
            kept = await env.snapshot()
            await case.go_on(env, rest, begun)
            for name, which in (("the same env", env), ("a fresh env", fresh)):
                await which.restore(kept)
                outcomes = await case.go_on(which, rest, begun)
                seen += [f"{backend}, {name}, {text}" for text in against(episode, outcomes)]
    return seen


@point("an episode goes on after its worker was killed", f"{_DETERMINE}; or mark the spec replayable=False")
async def killed_worker(case: Case) -> list[str]:
    _workers(case)
    if not case.spec.replayable:
        raise Skipped("it is not replayable, so that its episode fails with its worker")
    episode = case.episodes[0]
    async with case.open("process") as env:
        begun = await case.play(env, episode.seed, episode.actions[: episode.half])
        (worker,) = (worker for worker in _workers(case) if worker.rank == env.worker)
        if worker.pid is None:
            raise Skipped(f"worker {worker.rank} has no process")
        os.kill(worker.pid, signal.SIGKILL)
        return against(episode, await case.go_on(env, episode.actions[episode.half :], begun))


async def notes_on_seeds(case: Case) -> list[str]:
    """No point of the contract, as an env need not be random; but worth a look."""
    first, *others = case.episodes
    if not others:
        return []
    backend = next(iter(case.pools))
    async with case.open(backend) as env:
        for other in others:
            if against(first, await case.play(env, other.seed, first.actions)):
                return []
    return [f"seeds {first.seed} to {others[-1].seed} all gave the same episode: fine if nothing in it is random"]


def _workers(case: Case) -> list[WorkerStats]:
    if "process" not in case.pools:
        raise Skipped("it was not opened with backend 'process'")
    if not case.has_workers:
        raise Skipped("it runs on the event loop, not in a worker")
    return [worker for worker in case.pools["process"].stats().workers if worker.rank >= 0]


async def _offers_snapshots(case: Case) -> bool:
    async with Direct(case) as direct:
        return isinstance(direct.env, Snapshots)
