"""Which waiting calls to move to another worker, so that slow envs do not hold up those behind them."""

import heapq
from collections.abc import Iterator, Sequence
from operator import itemgetter

from asyncrollout.pool.hosts import LONG, SOON, Caller
from asyncrollout.pool.process.worker_host import WorkerHost
from asyncrollout.pool.wire.messages import Op

_CLEARLY_SOONER = 0.5  # well below 1, since expected times are only guesses


class _Queue:
    """What one worker has to do: the call at work, and those that wait behind it."""

    def __init__(self, host: WorkerHost, now: float) -> None:
        self.host = host
        call_id, start = host.page.main_call()
        begun = host.page.last_begun()  # earlier calls may have finished, with replies not read yet
        self.elapsed = now - start if call_id in host.pending else 0.0
        self.begins = host.remaining(now)  # seconds from now until the first waiting call begins
        self.waiting = [
            (call, op, caller) for call, (_, op, caller, _) in host.pending.items() if caller and call > begun
        ]
        self.ends = self.begins + sum(caller.work(op) for _, op, caller in self.waiting)


class _Soonest:
    """Which queue ends first, among so many that not each can be looked at for each call."""

    def __init__(self, queues: Sequence[_Queue]) -> None:
        self._queues = queues
        self._heap = [(queue.ends, place) for place, queue in enumerate(queues)]
        heapq.heapify(self._heap)

    def beside(self, place: int) -> int:
        """The place of the first one to end, other than this one; of equal ones, the first."""
        own: tuple[float, int] | None = None
        while True:
            ends, found = self._heap[0]
            if ends != self._queues[found].ends:  # it has changed since
                heapq.heappop(self._heap)
            elif found == place:
                own = heapq.heappop(self._heap)
            else:
                break
        if own is not None:
            heapq.heappush(self._heap, own)
        return found

    def note_change(self, place: int) -> None:
        heapq.heappush(self._heap, (self._queues[place].ends, place))


def plan_recalls(hosts: Sequence[WorkerHost], now: float) -> list[tuple[WorkerHost, int]]:
    """Envs that wait on a worker to be built, and had better wait for whichever is free first: building takes long.

    Of a new kind of env nobody knows that at first, so that all are sent out at once, evenly. They wait in the order in
    which they came.
    """
    found = []
    for queue in [_Queue(host, now) for host in hosts]:
        is_slow = queue.elapsed > LONG  # less may be the imports of the first one
        for call, op, caller in queue.waiting:
            if op is Op.OPEN and caller.may_be_recalled and (caller.builds_slowly or (is_slow and caller.is_new)):
                found.append((caller.id, queue.host, call))
    return [(host, call) for _, host, call in sorted(found, key=itemgetter(0))]


def plan_moves(hosts: Sequence[WorkerHost], now: float, soft: float) -> Iterator[tuple[WorkerHost, list[int]]]:
    """The calls to withdraw from each worker.

    A call moves only if another worker gets to it clearly sooner, with all the work that moving adds. A reset, which
    needs no state, moves to a worker that has nothing to do. Anything else moves only away from a call that has taken
    longer than `soft` seconds.
    """
    queues = [_Queue(host, now) for host in hosts]
    soonest = _Soonest(queues)
    for place, queue in enumerate(queues):
        moving = []
        begins = queue.begins
        for call, op, caller in queue.waiting:
            target_place = soonest.beside(place)
            target = queues[target_place]
            is_urgent = queue.elapsed > soft or (op is Op.RESET and caller.resets_slowly and target.ends < SOON)
            if begins > SOON and is_urgent and _is_sooner(caller, op, target.ends, begins):
                moving.append(call)
                target.ends += caller.detour(op) + caller.work(op)
                queue.ends -= caller.work(op)
                soonest.note_change(target_place)
                soonest.note_change(place)
            else:
                begins += caller.work(op)
        if moving:
            yield queue.host, moving


def _is_sooner(caller: Caller, op: Op, there: float, here: float) -> bool:
    return caller.may_move and there + caller.detour(op) < _CLEARLY_SOONER * here
