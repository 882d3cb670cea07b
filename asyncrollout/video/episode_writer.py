"""The video of one episode: images of any kind in, a fragmented MP4 out, encoded by an ffmpeg process beside us."""

import contextlib
import fcntl
import os
import select
import subprocess
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import IO, Any

from asyncrollout.video.captions import with_caption
from asyncrollout.video.ffmpeg import encode_command
from asyncrollout.video.frames import Frame, ImageReader, declared_bounds, fitted, video_size

_MOST_HELD = 4 << 20  # bytes of frames in memory before the encoder is waited for
_LEAST_HELD_FRAMES = 3
_PIPE = 1 << 20  # bytes; some twenty small frames fit without waking anybody up
_NICE = 10
_PATIENCE = 10.0  # seconds for an encoder to take a single byte
_END_GRACE = 10.0
_TERMINATE_GRACE = 2.0
_LONGEST_COMPLAINT = 300
_POLL = 1.0


class EpisodeWriter:
    """Takes images without ever blocking; whoever may wait calls `catch_up` when it `is_behind`.

    The first image decides the size and starts the encoder. Most frames go straight into its pipe, each at once: a kill
    must not cost more than one. A thread opens the pipe, passes on what did not fit, and closes it. `trouble` says why
    no more frames are taken. The file is locked until the process has ended, however it ends.
    """

    def __init__(self, path: Path, *, fps: float, ffmpeg: str, max_bytes: int | None = None, space: Any = None) -> None:
        self.path = path
        self.fps = fps
        self.frames = 0
        self._ffmpeg = ffmpeg
        self._max_bytes = max_bytes
        self._space = space  # of the env's observations, which may be what it renders
        self._reader: ImageReader | None = None
        self._shape = (0, 0)
        self._most_held = 0
        self._refusal = ""  # why nothing more is taken; what was taken is still encoded
        self._failure = ""  # why the encoder takes nothing more
        self._changed = threading.Condition()
        self._waiting: deque[memoryview] = deque()
        self._held = 0
        self._pipe: int | None = None
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._file = -1
        self._last_size = 0

    @property
    def trouble(self) -> str:
        return self._failure or self._refusal

    @property
    def doubt(self) -> str:
        """What may look wrong, though every frame is there."""
        return "" if self._reader is None else self._reader.doubt

    @property
    def is_behind(self) -> bool:
        return self._held > self._most_held

    @property
    def written(self) -> int:
        """Bytes of the file so far; frames may be on their way to it."""
        with self._changed:
            return self._size()

    def write(self, image: Any, caption: str | None = None) -> bool:
        """Whether the image was taken. A `UsageError` says what is wrong with it, `trouble` what with the file."""
        if self._reader is None:
            self._reader = ImageReader(declared_bounds(self._space, image))
        frame = self._reader.read(image)
        if caption is not None:
            frame = with_caption(frame, caption)
        if self._thread is None and not self.trouble:
            try:
                self._start(*video_size(frame))
            except (OSError, RuntimeError) as error:  # no directory, no room, no more threads
                self.fail(f"cannot write to {self.path.parent}: {getattr(error, 'strerror', None) or error}")
        return not self.trouble and self._send(fitted(frame, *self._shape))

    def fail(self, trouble: str) -> None:
        """Take no more frames."""
        self._refusal = self._refusal or trouble

    def catch_up(self) -> None:
        """Wait until there is room; an encoder that takes nothing for some seconds is given up."""
        with self._changed:
            while self.is_behind:
                if not self._changed.wait(_PATIENCE):
                    self._give_up()

    def end(self) -> None:
        """Take no more frames; what was taken is encoded and the file closed in the background."""
        with self._changed:
            self._pass_on()
            if not self._is_closing and self._process is not None and self._process.poll() is not None:
                self._fail("the encoder has ended")
            self._is_closing = True
            self._changed.notify_all()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether the file is closed."""
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _start(self, height: int, width: int) -> None:
        self._shape = height, width
        self._most_held = max(_MOST_HELD, _LEAST_HELD_FRAMES * height * width * 3)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        command = encode_command(self._ffmpeg, height, width, self.fps)
        thread = threading.Thread(target=self._run, args=(command,), name=f"video {self.path.name}", daemon=True)
        self._file = file
        try:
            thread.start()
        except RuntimeError:  # there are too many
            self._file = -1
            os.close(file)
            raise
        self._thread = thread

    def _send(self, frame: Frame) -> bool:
        with self._changed:
            if self._max_bytes is not None and self._size() > self._max_bytes:
                self._fail(f"the file has reached its limit of {self._max_bytes} bytes")
            if self.trouble or self._is_closing:
                return False
            self.frames += 1
            self._waiting.append(memoryview(frame.tobytes()))
            self._held += frame.size
            self._pass_on()
            if self._waiting:
                self._changed.notify_all()
            return not self.trouble

    def _run(self, command: list[str]) -> None:
        try:
            with tempfile.TemporaryFile() as complaints:
                process = self._open(command, complaints)
                while self._has_more():
                    self._pump()
                self._end_process(process)
                if process.returncode:
                    self._fail(f"the encoder ended: {_tail(complaints) or _cause(process.returncode)}")
        except OSError as error:
            self._fail(f"the encoder cannot be started: {error.strerror or error}")
        finally:
            with self._changed:
                self._last_size = self._size()
                file, self._file = self._file, -1
                os.close(file)

    def _open(self, command: list[str], complaints: IO[bytes]) -> subprocess.Popen[bytes]:
        # In a session of its own, Ctrl-C does not reach it, and Linux does not count its work as ours, which would make
        # the event loop late. It ends with its input, also if we are killed.
        process = subprocess.Popen(  # noqa: S603 (our own text)
            command, stdin=subprocess.PIPE, stdout=self._file, stderr=complaints, start_new_session=True
        )
        with contextlib.suppress(OSError):  # it gives way to envs and to the event loop
            os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
        assert process.stdin is not None
        pipe = process.stdin.fileno()
        os.set_blocking(pipe, False)
        with contextlib.suppress(OSError, AttributeError):  # Linux only, and up to a limit
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
        with self._changed:
            self._pipe, self._process = pipe, process
            self._pass_on()
        return process

    def _has_more(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing or self._failure)
            return bool(self._waiting)

    def _pump(self) -> None:
        assert self._pipe is not None
        poll = select.poll()
        poll.register(self._pipe, select.POLLOUT)
        is_last = self._is_closing  # nobody calls `catch_up` any more
        is_taking = poll.poll((_PATIENCE if is_last else _POLL) * 1000)
        with self._changed:
            if is_last and not is_taking:
                self._give_up()
            self._pass_on()

    def _pass_on(self) -> None:
        """Write as much as the pipe takes at once, and notify who waits for room; the lock is held."""
        try:
            while self._waiting and self._pipe is not None:
                sent = os.write(self._pipe, self._waiting[0])
                self._held -= sent
                rest = self._waiting.popleft()[sent:]
                if rest:
                    self._waiting.appendleft(rest)
                self._changed.notify_all()
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(f"the encoder has ended ({error.strerror})")

    def _end_process(self, process: subprocess.Popen[bytes]) -> None:
        with self._changed:
            self._pipe = None
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_GRACE)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(_TERMINATE_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _give_up(self) -> None:
        self._fail(f"the encoder has taken nothing for {_PATIENCE:g} s")
        if self._process is not None:
            self._process.kill()

    def _fail(self, failure: str) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._waiting.clear()
            self._held = 0
            self._changed.notify_all()

    def _size(self) -> int:
        return os.fstat(self._file).st_size if self._file >= 0 else self._last_size


def _tail(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    return complaints.read(_LONGEST_COMPLAINT).decode(errors="replace").strip().replace("\n", "; ")


def _cause(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
