"""ffmpeg as a process beside us: frames in, a fragmented MP4 out, which plays however it ends."""

import contextlib
import fcntl
import os
import select
import subprocess
import tempfile
import threading
from collections import deque
from functools import cache
from pathlib import Path
from typing import IO

from asyncrollout.errors import MissingExtraError
from asyncrollout.video.frames import Frame

_MOST_HELD = 4 << 20  # bytes that wait for an encoder before it is waited for
_LEAST_HELD_FRAMES = 3
_PIPE = 1 << 20  # bytes; some twenty small frames go without anybody waking up
_NICE = 10
_PATIENCE = 10.0  # seconds for an encoder to take a single byte
_END_GRACE = 10.0
_TERMINATE_GRACE = 2.0
_LONGEST_COMPLAINT = 300
_POLL = 1.0


@cache
def find_ffmpeg() -> str:
    """The program; takes a tenth of a second the first time."""
    try:
        import imageio_ffmpeg  # noqa: PLC0415 (only those who record need it)

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(f"recording needs ffmpeg: pip install imageio-ffmpeg ({error})") from error


def _command(ffmpeg: str, height: int, width: int, fps: float) -> list[str]:
    """A fragment for each frame, written at once, so that a kill costs a frame at most; a key frame for every 15th."""
    given = f"-f rawvideo -pix_fmt rgb24 -video_size {width}x{height} -framerate {fps:.6g}"
    quick = "-probesize 32 -analyzeduration 0"
    h264 = "-c:v libx264 -preset ultrafast -tune zerolatency -crf 20 -g 15 -pix_fmt yuv420p -threads 1"
    mp4 = "-f mp4 -movflags frag_every_frame+empty_moov+default_base_moof -flush_packets 1"
    options = f"-loglevel error -nostats {given} {quick} -i pipe:0 -an {h264} {mp4} pipe:1"
    return [ffmpeg, *options.split()]


class Encoder:
    """Takes frames of one size without ever blocking; whoever may wait calls `catch_up` when it `is_behind`.

    Most frames go straight into the pipe of the process, each at once: a kill must not cost more than one. A thread
    opens the pipe, passes on what did not fit, and closes it.
    `trouble` says why it takes no more frames. The file is locked until the process has ended, however it ends.
    """

    def __init__(self, path: Path, height: int, width: int, fps: float, *, ffmpeg: str, max_bytes: int | None) -> None:
        self.frames = 0
        self.trouble = ""
        self._bytes_of_frame = height * width * 3
        self._most_held = max(_MOST_HELD, _LEAST_HELD_FRAMES * self._bytes_of_frame)
        self._max_bytes = max_bytes
        self._last_size = 0
        self._changed = threading.Condition()
        self._waiting: deque[memoryview] = deque()
        self._held = 0
        self._pipe: int | None = None
        self._closing = False
        self._process: subprocess.Popen[bytes] | None = None
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        command = _command(ffmpeg, height, width, fps)
        self._thread = threading.Thread(target=self._run, args=(command,), name=f"video {path.name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # there are too many
            os.close(self._file)
            raise

    @property
    def is_behind(self) -> bool:
        return self._held > self._most_held

    @property
    def written(self) -> int:
        """Bytes that the file has so far."""
        with self._changed:
            return self._size()

    def write(self, frame: Frame) -> bool:
        """Whether the frame was taken."""
        with self._changed:
            if not self.trouble and self._max_bytes is not None and self._size() > self._max_bytes:
                self._fail(f"the file has reached its limit of {self._max_bytes} bytes")
            if self.trouble or self._closing:
                return False
            self.frames += 1
            self._waiting.append(memoryview(frame.tobytes()))
            self._held += self._bytes_of_frame
            self._pass_on()
            if self._waiting:
                self._changed.notify_all()
            return not self.trouble

    def catch_up(self) -> None:
        """Wait until there is room; an encoder that takes nothing for some seconds is given up."""
        with self._changed:
            while self.is_behind:
                if not self._changed.wait(_PATIENCE):
                    self._give_up()

    def end(self) -> None:
        """Take no more frames; what was taken is encoded, and the file is closed, by and by."""
        with self._changed:
            self._pass_on()
            if not self._closing and self._process is not None and self._process.poll() is not None:
                self._fail("the encoder has ended")
            self._closing = True
            self._changed.notify_all()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has come to its end."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

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
        # In a session of its own, Ctrl-C passes it by, and Linux does not count its work as ours, which would make the
        # event loop late; it ends with its input, also if we are killed.
        process = subprocess.Popen(  # noqa: S603 (our own text)
            command, stdin=subprocess.PIPE, stdout=self._file, stderr=complaints, start_new_session=True
        )
        with contextlib.suppress(OSError):  # it gives way to envs and to the event loop
            os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
        assert process.stdin is not None
        pipe = process.stdin.fileno()
        os.set_blocking(pipe, False)
        with contextlib.suppress(OSError, AttributeError):  # only Linux has it, and not without end
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
        with self._changed:
            self._pipe, self._process = pipe, process
            self._pass_on()
        return process

    def _has_more(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing or self.trouble)
            return bool(self._waiting)

    def _pump(self) -> None:
        assert self._pipe is not None
        poll = select.poll()
        poll.register(self._pipe, select.POLLOUT)
        is_last = self._closing  # nobody calls `catch_up` any more
        is_taking = poll.poll((_PATIENCE if is_last else _POLL) * 1000)
        with self._changed:
            if is_last and not is_taking:
                self._give_up()
            self._pass_on()

    def _pass_on(self) -> None:
        """As much as the pipe takes at once; the lock is held. Whoever waits for room hears of it."""
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

    def _fail(self, trouble: str) -> None:
        with self._changed:
            self.trouble = self.trouble or trouble
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
