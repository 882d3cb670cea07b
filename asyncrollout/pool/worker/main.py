"""The worker's end: reads frames of calls, plays them on the envs that live here, sends frames of replies."""

import os
import socket
import threading
import time
from collections import deque
from functools import partial
from time import monotonic
from typing import Any

import msgspec

from asyncrollout.errors import EnvError, EnvResourceError, UsageError
from asyncrollout.pool.hosts import CLOSE_GRACE
from asyncrollout.pool.wire import codec, network
from asyncrollout.pool.wire.digest import encode_with_digest
from asyncrollout.pool.wire.failure import failure
from asyncrollout.pool.wire.messages import NOT_LOADED, Op, OpenRequest, WorkerCall
from asyncrollout.pool.wire.shared_arrays import Arena, ArrayWriter
from asyncrollout.pool.wire.status_page import CLOSING, PAGE_SLOTS, StatusPage
from asyncrollout.pool.worker.entry import WorkerConfig
from asyncrollout.pool.worker.env_runner import EnvRunner, run_now
from asyncrollout.pool.worker.guards import kill_group, resident_bytes
from asyncrollout.pool.worker.text import Fields
from asyncrollout.pool.worker.thread import EnvThread
from asyncrollout.protocols import Camera

_SLOW = 0.0002  # seconds; before a call that takes longer, replies at hand are sent
_FLUSH_AFTER = 0.01  # seconds; to look more often costs more than quick steps do
_MOST_REPLIES = 16  # replies; the pool reads them while the next ones are made
_SMOOTHING = 0.2
_UNKNOWN = 0.001  # seconds; counts as slow for the first few steps
_RECEIVE = 1 << 18
_MOST_KEPT = 32 << 20  # bytes of a frame's memory that is used again
_LOG_LIMIT = 8 << 20
_LOG_CHECK = 1024  # frames
_MANY_PAGES = 0.005  # seconds; a step that touches much new memory takes at least so long
_CAMERAS = 64  # more than one process should have at work
_CAMERA_GRACE = 2.0  # seconds for their files to be closed at the end
_MAIN = 0  # the main thread's slot in the page
_STEP, _STOP = int(Op.STEP), int(Op.STOP)
_NEVER_SKIPPED = (Op.CLOSE, Op.END_VIDEO)  # even if nobody awaits them

Answer = tuple[Any, Any, int | None, bytes | None]
"""Value, info, digest, snapshot."""


class HostedEnv:
    """One env of this worker: how long its steps and resets take, and where its large arrays go."""

    def __init__(self, opening: OpenRequest, arena: Arena | None, *, send_snapshots: bool) -> None:
        self.hosted = EnvRunner(opening, shared=False)
        self.typical = _UNKNOWN
        self.typical_reset = _UNKNOWN
        self.arrays = ArrayWriter(arena)
        self.sends_snapshots = send_snapshots and self.hosted.has_snapshots

    def perform(self, op: Op, payload: Any, page: StatusPage, slot: int, call_id: int) -> Answer:
        result = run_now(self.hosted.perform(op, payload, lambda: page.begin(slot, call_id, monotonic())))
        if op in (Op.RESET, Op.REPLAY) and result is not None:
            return self.outcome(result)
        self.arrays.begin()
        return codec.embed(result, self.arrays.place), None, None, None

    def outcome(self, fields: Fields) -> Answer:
        observation, reward, terminated, truncated, info = fields
        body, digest = encode_with_digest([observation, reward, terminated, truncated], self.arrays)
        sent_info = codec.embed(info, self.arrays.place) if info else None
        state = run_now(self.hosted.snapshot()) if self.sends_snapshots else None
        return msgspec.Raw(body), sent_info, digest, state


class WorkerLoop:
    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._page = StatusPage.attach(config.directory / "page")
        self._withdrawn = self._page.withdrawn
        self._arena = Arena(config.directory) if config.maps_arrays else None
        self._residents: dict[int, HostedEnv] = {}
        self._io_residents: dict[int, HostedEnv] = {}
        self._threads: dict[int, tuple[EnvThread, int]] = {}  # of `io` envs, with their slots in the page
        self._leaving: list[EnvThread] = []  # whose env is being closed
        self._free_slots = deque(range(1, PAGE_SLOTS))
        self._cameras: deque[Camera] = deque(maxlen=_CAMERAS)  # of envs that were closed last
        self._held: deque[tuple[Any, ...]] = deque()  # replies, with the fields of `CallReply`
        self._outgoing = bytearray()
        self._sending = threading.Lock()
        self._behind = threading.Event()
        self._socket = _connect(config)
        os.register_at_fork(after_in_child=self._socket.close)  # what an env forks must not answer in our name

    def run(self) -> None:
        """Introduce this worker, then serve until the pool stops it or is gone."""
        try:
            self._serve()
        except BaseException:  # such as an env that closed our socket; the caller kills the whole process group
            self._page.give_up()
            raise

    def _serve(self) -> None:
        self._socket.sendall(codec.frame([self._config.token, os.getpid(), resident_bytes(os.getpid())]))
        threading.Thread(target=self._flush_late, daemon=True).start()
        frames, decode = codec.FrameReader(), codec.Unpacker().decoder(list[WorkerCall])
        received = last_call = 0
        while data := self._socket.recv(_RECEIVE):
            for frame in frames.feed(data):
                for call in decode(frame):
                    if call.op == _STOP:
                        self._close_all()
                        return
                    self._take(call)
                last_call = call.call_id
            self._flush()
            self._page.end_frame(last_call)  # only now: a step that closed our socket is still to blame
            received += 1
            if received % _LOG_CHECK == 0 and os.fstat(1).st_size > _LOG_LIMIT:
                os.ftruncate(1, 0)

    def _take(self, call: WorkerCall) -> None:
        resident = self._residents.get(call.env_id)
        if resident is not None and call.op == _STEP:
            self._play_step(call, resident, _MAIN)
        elif resident is None and (call.env_id in self._threads or (_opens_io(call) and self._free_slots)):
            self._hand_over(call)
        else:
            self._play_other(call, resident, _MAIN)

    def _hand_over(self, call: WorkerCall) -> None:
        """An `io` env waits in its own thread, where it was also made, so that it delays nobody."""
        env_id = call.env_id
        if env_id not in self._threads:
            self._threads[env_id] = EnvThread(), self._free_slots.popleft()
        thread, slot = self._threads[env_id]
        thread.submit(lambda: self._play_io(call, slot))
        if call.op == Op.CLOSE:
            self._threads.pop(env_id)
            thread.end()
            self._leaving = [*(other for other in self._leaving if not other.ended.is_set()), thread]

    def _play_io(self, call: WorkerCall, slot: int) -> None:
        resident = self._io_residents.get(call.env_id)
        if resident is not None and call.op == _STEP:
            self._play_step(call, resident, slot)
        else:
            self._play_other(call, resident, slot)
        self._flush()
        self._page.end(slot)
        if call.op == Op.CLOSE:
            self._free_slots.append(slot)

    def _play_step(self, call: WorkerCall, resident: HostedEnv, slot: int) -> None:
        self._send_before(resident.typical)
        call_id, action = call.call_id, call.payload
        self._let_camera_catch_up(resident, slot)
        start = monotonic()
        self._page.begin(slot, call_id, start)
        if self._withdrawn[0] and self._page.is_withdrawn(call_id):
            self._skip(call_id)
            return
        try:
            value, info, digest, state = resident.outcome(resident.hosted.step_now(_loaded(action)))
            trouble = None
        except BaseException as error:  # SystemExit too: everything that an env raises is its own failure
            trouble = failure(error)
            value, info, digest, state = _nothing(action)
        seconds = monotonic() - start
        resident.typical += _SMOOTHING * (seconds - resident.typical)
        if seconds > _MANY_PAGES and self._uses_too_much():
            self._give_up(call_id, slot)
        self._held.append((call_id, trouble, value, info, digest, seconds, state))
        if resident.arrays.is_bulky:  # the pool reads it while the next step is made
            self._flush()

    def _send_before(self, seconds: float) -> None:
        """Send the replies of others, unless what comes now is quick; then they go if it turns out slow after all."""
        if self._held:
            if seconds > _SLOW or len(self._held) >= _MOST_REPLIES:
                self._flush()
            elif not self._behind.is_set():
                self._behind.set()

    def _let_camera_catch_up(self, resident: HostedEnv, slot: int) -> None:
        """Between steps, and not as a part of one, whose time limit is its env's."""
        camera = resident.hosted.camera
        if camera is not None and camera.is_behind:
            self._flush()
            self._page.end(slot)
            camera.catch_up()

    def _play_other(self, call: WorkerCall, resident: HostedEnv | None, slot: int) -> None:
        call_id, env_id, payload, op = call.call_id, call.env_id, call.payload, Op(call.op)
        self._send_before(resident.typical_reset if op is Op.RESET and resident is not None else _UNKNOWN)
        start = monotonic()
        self._page.begin(slot, call_id, start)
        if self._withdrawn[0] and op not in _NEVER_SKIPPED and self._page.is_withdrawn(call_id):
            self._skip(call_id)
            return
        answer: Answer = None, None, None, None
        trouble = None
        try:
            if op is Op.OPEN:
                self._open(env_id, _loaded(payload))
            elif resident is not None:
                if op is Op.CLOSE:
                    self._leave(env_id, resident)
                answer = resident.perform(op, _loaded(payload), self._page, slot, call_id)
            elif op is not Op.CLOSE:
                raise EnvError(f"no env {env_id} lives on worker {self._config.rank}")
        except BaseException as error:  # as above
            trouble = failure(error, op)
            answer = _nothing(payload)
        if self._uses_too_much():
            self._give_up(call_id, slot)
        value, info, digest, state = answer
        seconds = monotonic() - start
        if op is Op.RESET and resident is not None:
            resident.typical_reset += _SMOOTHING * (seconds - resident.typical_reset)
        self._held.append((call_id, trouble, value, info, digest, seconds, state))

    def _skip(self, call_id: int) -> None:
        self._held.append((call_id, None, None, None, None, 0.0, None, True))

    def _uses_too_much(self) -> bool:
        limit = self._config.memory_limit
        return limit is not None and resident_bytes(os.getpid()) > limit

    def _give_up(self, call_id: int, slot: int) -> None:
        """The call just done took us over the memory limit: end here, so that it, and no later one, is to blame."""
        error = EnvResourceError(
            f"its worker uses more than {self._config.memory_limit} bytes of memory after this call"
        )
        self._held.append((call_id, failure(error), None, None, None, 0.0, None))
        self._flush()
        self._page.end(slot)
        kill_group(os.getpid())

    def _open(self, env_id: int, opening: OpenRequest) -> None:
        is_io = opening.spec.runs == "io"
        if is_io and env_id not in self._threads:
            raise UsageError(f"a worker runs at most {PAGE_SLOTS - 1} io envs: use more workers")
        residents = self._io_residents if is_io else self._residents
        residents[env_id] = HostedEnv(opening, self._arena, send_snapshots=self._config.send_snapshots)

    def _leave(self, env_id: int, resident: HostedEnv) -> None:
        self._residents.pop(env_id, None)
        self._io_residents.pop(env_id, None)
        resident.arrays.close()
        if resident.hosted.camera is not None:
            self._cameras.append(resident.hosted.camera)

    def _flush(self) -> None:
        with self._sending:
            replies = []
            while self._held:
                replies.append(self._held.popleft())
            if replies:
                codec.frame_into(self._outgoing, replies)
                self._socket.sendall(self._outgoing)
                if len(self._outgoing) > _MOST_KEPT:
                    self._outgoing = bytearray()

    def _flush_late(self) -> None:
        """Sends what waits behind a step that turned out slow."""
        while True:
            self._behind.wait()
            time.sleep(_FLUSH_AFTER)
            self._behind.clear()
            self._flush()

    def _close_all(self) -> None:
        """Each env is closed in its own thread, and the page shows how long that takes: who hangs is killed."""
        self._flush()
        for env_id, (thread, slot) in self._threads.items():
            thread.submit(partial(self._close_io, env_id, slot))
            thread.end()
        threads = [*self._leaving, *(thread for thread, _ in self._threads.values())]
        for resident in [*self._residents.values()]:
            self._page.begin(_MAIN, CLOSING, monotonic())
            self._close(resident)
        self._page.end(_MAIN)
        deadline = monotonic() + CLOSE_GRACE
        for thread in threads:
            thread.ended.wait(max(deadline - monotonic(), 0.0))
        deadline = monotonic() + _CAMERA_GRACE
        for camera in self._cameras:
            camera.wait(max(deadline - monotonic(), 0.0))

    def _close_io(self, env_id: int, slot: int) -> None:
        self._page.begin(slot, CLOSING, monotonic())
        if env_id in self._io_residents:  # else it could not be made
            self._close(self._io_residents[env_id])
        self._page.end(slot)

    def _close(self, resident: HostedEnv) -> None:
        try:
            run_now(resident.hosted.close())
        except BaseException as error:  # the others are closed all the same
            print(failure(error).trace)
        if resident.hosted.camera is not None:
            self._cameras.append(resident.hosted.camera)


def _connect(config: WorkerConfig) -> socket.socket:
    if config.network is not None:
        return network.connect(config.network, network.STEPS)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(config.directory / "socket"))
    return connection


def _loaded(payload: Any) -> Any:
    if type(payload) is codec.Undecodable:
        hint = ": it has the sys.path of when the pool was opened" if "ModuleNotFoundError" in payload.reason else ""
        raise UsageError(f"what was sent to the env cannot be loaded in its worker: {payload.reason}{hint}")
    return payload


def _nothing(payload: Any) -> Answer:
    """Of a call that failed."""
    return NOT_LOADED if type(payload) is codec.Undecodable else None, None, None, None


def _opens_io(call: WorkerCall) -> bool:
    return call.op == Op.OPEN and isinstance(call.payload, OpenRequest) and call.payload.spec.runs == "io"
