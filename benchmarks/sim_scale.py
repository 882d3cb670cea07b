"""What one trainer process costs as a cluster grows: real sampler, ledger and placement, against simulated nodes.

    python benchmarks/sim_scale.py [--nodes 10 100 1000] [--part shards envs] [--json]

No Ray and no other process takes part: a simulated shard answers with the frames that a real one sends, a simulated
worker with the frames of a real one. Their own CPU is measured and left out. Two parts:

shards  groups of 8 rollouts of 4 turns, as many in flight as two on each of the most nodes, one shard for each node:
        CPU for each group
envs    8 envs for each of the most nodes, one worker for each node: CPU for each step, resets and placement included;
        and the cost of the tick that watches all workers

The load is the same for any number of nodes, so that only their number differs. What is alive when the measurement
begins is left out of garbage collection (`gc.freeze`), as a program with thousands of envs should have it.
"""

import asyncio
import gc
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import anyio
import msgspec
import uvloop

import asyncrollout as ar
from asyncrollout.journal.events import Replied, encode, encode_reply
from asyncrollout.pool.hosts import DurationWindow
from asyncrollout.pool.process.backend import WorkersBackend
from asyncrollout.pool.process.worker_host import WorkerHost
from asyncrollout.pool.wire import codec
from asyncrollout.pool.wire.codec import from_pickle
from asyncrollout.pool.wire.messages import Op
from asyncrollout.ray.actor_host import ActorHost, ReportedPage
from asyncrollout.rollouts.shards import shard_messages as said
from asyncrollout.rollouts.shards.local_shards import LocalChannel
from asyncrollout.rollouts.shards.shard_messages import decode_orders, encode_messages
from benchmarks.harness import Row, new_parser, show

NODES = (10, 100, 1000)
SIZE, TURNS = 8, 4
GROUPS_EACH = 2
ENVS_EACH, STEPS = 8, 20
GOAL = 1.3


class Apart:
    """CPU that the simulation takes, and not the trainer."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def __enter__(self) -> None:
        self._since = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.thread_time() - self._since


# Shards.


class SimulatedShards:
    """A backend of shards that reply as fast as they are read: each turn of each rollout in a frame of its own."""

    workers = None

    def __init__(self, count: int, apart: Apart) -> None:
        self.count = count
        self.apart = apart

    def launcher(self) -> "SimulatedLauncher":
        return SimulatedLauncher(self.apart)


class SimulatedLauncher:
    def __init__(self, apart: Apart) -> None:
        self._apart = apart
        reply = encode_reply(ar.Generation("<think>left</think><answer>Right</answer>"))
        self._line = encode(Replied(uid="g1000.0", turn=1, asked=1, reply=reply, request=1))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def start(self, name: str, _on_silent: Callable[[str], None]) -> "SimulatedShard":
        return SimulatedShard(f"node{name}", self._apart, self._line)


class SimulatedShard:
    def __init__(self, node: str, apart: Apart, line: bytes) -> None:
        self.node = node
        self.channel, self._end = LocalChannel.pair()
        self._apart, self._line = apart, line
        self._is_set_up = False
        self._end.open(self._on_frame, lambda: None)
        self._loop = asyncio.get_running_loop()

    async def kill(self) -> None:
        self.channel.abort()

    def _send(self, *reports: Any) -> None:
        self._end.send(encode_messages(reports))

    def _on_frame(self, frame: bytes | memoryview) -> None:
        with self._apart:
            if not self._is_set_up:
                self._is_set_up = True
                self._send(said.ShardReady(1))
                return
            for order in decode_orders(frame):
                self._follow(order)

    def _follow(self, order: Any) -> None:
        match order:
            case said.PlayGroup(play=play, assignment=assignment):
                self._send(*(said.SlotWanted(play, member) for member in range(SIZE)))
                self._loop.call_soon(self._play, play, from_pickle(assignment).request, 0)
            case said.EndShard():
                self._end.close()

    def _play(self, play: int, request: Any, turn: int) -> None:
        """One turn of all members, a frame for each; then the next one, when others had their turn."""
        with self._apart:
            if turn == TURNS:
                self._finish(play, request)
                return
            for member in range(SIZE):
                first = [said.MemberDispatched(play, member), said.MemberWaits(play, member, "the env's reset")]
                self._send(
                    *(first if turn == 0 else ()),
                    said.MemberWaits(play, member, "the policy"),
                    said.ReplyRecorded(play, member, self._line),
                    said.MemberWaits(play, member, "the env's step"),
                    said.ReplySampled(play, member, 12, 0.5),
                    said.TurnPlayed(play, member, turn, 0.01),
                )
        self._loop.call_soon(self._play, play, request, turn + 1)

    def _finish(self, play: int, request: Any) -> None:
        turn = ar.Turn(ar.Observation("a grid " * 20), "<think>left</think><answer>Right</answer>", reward=0.1)
        for member in range(SIZE):
            one = ar.Trajectory(
                f"{request.id}.{member}", "lake", request.seed, [turn] * TURNS, member * 0.1, ar.StopReason.TERMINATED,
                member=member, messages=[{"role": "user", "content": "a grid " * 20}] * (2 * TURNS),
            )  # fmt: skip
            self._send(
                said.SlotReturned(play, member),
                said.MemberWaits(play, member, ""),
                said.MemberFinished(play, member, pickle.dumps(one), b""),
            )
        self._send(said.GroupEnded(play, b""))


async def play_on(nodes: int, in_flight: int) -> float:
    """Seconds of CPU for each group."""
    apart = Apart()
    async with ar.Rollouts(
        "frozen_lake", policy=ar.SolverPolicy(), group_size=SIZE, shards=SimulatedShards(nodes, apart), max_lag=None,
        max_in_flight=in_flight * SIZE, keep=ar.filters.reward_varies, stall_seconds=3600,
    ) as rollouts:  # fmt: skip
        await anext(rollouts.batches(groups=in_flight))
        began, before, played = time.thread_time(), apart.seconds, rollouts.ledger.ends["delivered"]
        gc.freeze()
        await anext(rollouts.batches(groups=in_flight))
        spent = time.thread_time() - began - (apart.seconds - before)
        return spent / ((rollouts.ledger.ends["delivered"] - played) / SIZE)


# Environments.


class SimulatedRank:
    """A worker that replies at once."""

    failure = None
    ended = stopping = False
    restarts = 0
    node = "node"

    def __init__(self, rank: int, backend: "SimulatedWorkers") -> None:
        self.rank = rank
        self.host: WorkerHost | None = None
        self._backend = backend

    async def run(self) -> None:
        backend = self._backend
        page = ReportedPage()
        self.host = host = ActorHost(
            self.rank, token=b"", arrays=Unmapped(), clock=backend.clock, on_hello=lambda _: None,
            on_idle=backend.on_idle, on_lost=lambda _: None, reported=page, node="node",
            starting=backend.watch_context.starting,
        )  # fmt: skip
        host.connection_made(SimulatedSocket(host, backend.apart))
        host.pid = 1
        backend.on_change()
        await anyio.sleep_forever()

    def watch(self, now: float) -> None:
        """As of an actor that has just reported."""
        if self.host is not None:
            self.host.page.running()

    def stop(self) -> None:
        self.ended = self.stopping = True
        self._backend.on_change()

    def is_overdue(self, _grace: float) -> bool:
        return False

    def stop_now(self) -> None: ...


class Unmapped:
    """No arrays come."""

    def read(self, _reference: bytes) -> Any:
        raise AssertionError

    def close(self) -> None: ...


class SimulatedSocket(asyncio.Transport):
    """Replies to the calls of a frame, in the next iteration of the loop."""

    def __init__(self, host: WorkerHost, apart: Apart) -> None:
        super().__init__()
        self._host = host
        self._apart = apart
        self._decode = msgspec.msgpack.Decoder().decode
        self._loop = asyncio.get_running_loop()

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...

    def write(self, data: Any) -> None:
        with self._apart:
            replies: list[Any] = []
            for call_id, _, op, _ in self._decode(bytes(data)[8:]):
                outcome = ["state", 0.0, False, False] if op in (Op.STEP, Op.RESET) else None
                replies.append((call_id, None, outcome, {}, 1, 0.00001, None))
            frame = codec.frame(replies)
        self._loop.call_soon(self._host.data_received, frame)


class SimulatedWorkers(WorkersBackend):
    """The backend's own code, on ranks that are simulated."""

    def __init__(self, workers: int, apart: Apart, limits: Any) -> None:
        super().__init__(workers, limits, None)
        self.apart = apart
        self.clock = DurationWindow()
        self.on_idle, self.on_change, self.watch_context = self._on_idle, self._on_change, self._watch

    async def _make_ranks(self, root: Path) -> Sequence[Any]:
        return [SimulatedRank(rank, self) for rank in range(len(self._environs))]

    def tick(self) -> float:
        """Seconds of CPU of one look at all workers."""
        began = time.thread_time()
        now = self._watch.tick()
        for rank in self._ranks:
            rank.watch(now)
        self._relieve(now)
        return time.thread_time() - began


class SimulatedPool(ar.EnvPool):
    def __init__(self, workers: int, apart: Apart) -> None:
        super().__init__(workers, recover="none")
        self._apart = apart
        self.simulated: SimulatedWorkers | None = None

    def _check_descriptors(self) -> None: ...

    def _make_backend(self) -> SimulatedWorkers:
        self.simulated = SimulatedWorkers(self._workers, self._apart, self._rules.limits)
        return self.simulated


async def step_on(nodes: int, count: int) -> tuple[float, float]:
    """Seconds of CPU for each step, and for each look at all workers."""
    apart = Apart()
    spec = ar.EnvSpec(name="simulated", factory="benchmarks.sim_scale:SimulatedPool", runs="cpu")
    async with SimulatedPool(nodes, apart) as pool:
        envs = [await pool.open(spec) for _ in range(count)]
        gc.freeze()

        async def play(env: ar.EnvHandle) -> None:
            for episode in range(STEPS // 10):
                await env.reset(seed=episode)
                for _ in range(9):
                    await env.step("Right")

        began, before = time.thread_time(), apart.seconds
        async with anyio.create_task_group() as tasks:
            for env in envs:
                tasks.start_soon(play, env)
        spent = time.thread_time() - began - (apart.seconds - before)
        assert pool.simulated is not None
        tick = min(pool.simulated.tick() for _ in range(5))
        for env in envs:
            await env.close()
    return spent / (len(envs) * STEPS), tick


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--nodes", nargs="+", type=int, default=NODES)
    parser.add_argument("--part", nargs="+", choices=("shards", "envs"), default=("shards", "envs"))
    given = parser.parse_args()
    rows: list[Row] = []
    first: dict[str, float] = {}
    most = max(given.nodes)

    def add(what: str, nodes: int, seconds: float, *, is_compared: bool = True) -> None:
        first.setdefault(what, seconds)
        ratio = seconds / first[what]
        goal = f"<= {GOAL:g}x of {given.nodes[0]}" if is_compared and nodes != given.nodes[0] else "-"
        met = ratio <= GOAL if goal != "-" else None
        rows.append(Row(f"{what}, {nodes} nodes", seconds * 1e6, "us", first[what] * 1e6, ratio, goal, met))

    for nodes in given.nodes:
        if "shards" in given.part:
            add("trainer's CPU for a group", nodes, uvloop.run(play_on(nodes, most * GROUPS_EACH)))
        if "envs" in given.part:
            step, tick = uvloop.run(step_on(nodes, most * ENVS_EACH))
            add("pool's CPU for a step", nodes, step)
            add("a look at all workers, 10 in a second", nodes, tick, is_compared=False)
    show(rows, as_json=given.json)


if __name__ == "__main__":
    main()
