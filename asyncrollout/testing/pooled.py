"""Points that are seen through the pool: the same seed and actions give the same episode, even after a worker dies."""

import os
import signal
from itertools import product

from asyncrollout.protocols import has_snapshots
from asyncrollout.testing.cases import Case, against
from asyncrollout.testing.direct import DirectPoints
from asyncrollout.testing.points import Skipped, point
from asyncrollout.types import WorkerStats

_DETERMINE = (
    "draw from a numpy Generator that reset() creates from its seed; use no global random state, clock, hash() or "
    "order of a set"
)

_OWN = "keep the env's state in the env itself: none of it in its class, its module or its keyword arguments"


@point(
    "reset() gives (observation, info) and step() (observation, reward, terminated, truncated, info)",
    "mend what the error says",
)
async def plays(case: Case) -> list[str]:
    return [str(episode.error) for episode in case.episodes if episode.error]


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
        async with case.open(backend, **case.one_process(backend)) as env:
            for left, episode in zip([*case.episodes[1:], case.episodes[0]], case.episodes, strict=True):
                await case.play(env, left.seed, left.actions[: left.half])
                seen += [f"{backend}, {text}" for text in await case.replays(env, episode)]
    return seen


@point(
    "an ended episode leaves nothing to the next one",
    f"let reset() set all that step() changes, also at an end; {_OWN}",
)
async def same_after_end(case: Case) -> list[str]:
    if not any(episode.ended for episode in case.episodes):
        raise Skipped("none of its episodes came to an end: give more `actions` or `max_steps`")
    seen = []
    for backend in case.pools:
        async with case.open(backend, **case.one_process(backend)) as env:
            for ended, episode in zip(case.episodes, [*case.episodes[1:], case.episodes[0]], strict=True):
                if ended.ended:
                    await case.play(env, ended.seed, ended.actions)
                    seen += [f"{backend}, {text}" for text in await case.replays(env, episode)]
    return seen


@point("envs in one process leave each other alone", _OWN)
async def same_beside_others(case: Case) -> list[str]:
    """One is opened and closed in the middle of another's episode; then two take turns."""
    one, other = case.episodes[0], case.episodes[-1]
    rest = one.actions[one.half :]
    seen = []
    for backend in case.pools:
        options = case.one_process(backend)
        async with case.open(backend, **options) as env:
            outcomes = await case.play(env, one.seed, one.actions[: one.half])
            async with case.open(backend, **options):
                pass
            async with case.open(backend, **options) as beside:
                others = await case.play(beside, other.seed, ())
                for turn in range(max(len(rest), len(other.actions))):
                    outcomes = await case.resume_at(env, rest[turn : turn + 1], outcomes)
                    others = await case.resume_at(beside, other.actions[turn : turn + 1], others)
        seen += [f"{backend}, {text}" for text in [*against(one, outcomes), *against(other, others)]]
    return seen


@point("every worker gives the same episode from the same seed", _DETERMINE)
async def same_on_workers(case: Case) -> list[str]:
    seen = []
    for worker in _workers(case):
        async with case.open("process", worker=worker.rank) as env:
            for episode in case.episodes:
                seen += [f"worker {worker.rank}, {text}" for text in await case.replays(env, episode)]
    return seen


@point("a fork continues like the original", _OWN)
async def fork(case: Case) -> list[str]:
    episode = case.episodes[0]
    if not case.spec.replayable and not await _offers_snapshots(case):
        raise Skipped("it is not replayable and has no snapshot()")
    seen = []
    for backend, place in product(case.pools, episode.places):
        async with case.open(backend) as env:
            begun = await case.play(env, episode.seed, episode.actions[:place])
            twin = await env.fork()
            for name, which in (("the fork", twin), ("the original", env)):
                outcomes = await case.resume_at(which, episode.actions[place:], begun)
                seen += [f"{backend}, {name} at step {place}, {text}" for text in against(episode, outcomes)]
            await twin.close()
    return seen


@point("restore() brings back the state of snapshot()", "put all that step() reads into it, random generators included")
async def snapshots(case: Case) -> list[str]:
    if not await _offers_snapshots(case):
        raise Skipped("it has no snapshot() and restore()")
    episode = case.episodes[0]
    seen = []
    for backend, place in product(case.pools, episode.places):
        rest = episode.actions[place:]
        async with case.open(backend) as env, case.open(backend) as fresh:
            begun = await case.play(env, episode.seed, episode.actions[:place])
            kept = await env.snapshot()
            await case.resume_at(env, rest, begun)
            for name, which in (("the same env", env), ("a fresh env", fresh)):
                await which.restore(kept)
                outcomes = await case.resume_at(which, rest, begun)
                seen += [f"{backend}, {name} at step {place}, {text}" for text in against(episode, outcomes)]
    return seen


@point("an episode continues after its worker was killed", f"{_DETERMINE}; or mark the spec replayable=False")
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
        return against(episode, await case.resume_at(env, episode.actions[episode.half :], begun))


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
    async with DirectPoints(case) as direct:
        return has_snapshots(direct.env)
