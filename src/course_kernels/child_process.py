"""A kept child process that answers requests, for work that this process cannot do or must not do itself.

The child imports a module and calls its ``serve(connection)``, which calls ``answer_all``. Requests and answers are
bytes; each module chooses their form. Whatever the child prints goes to a log, which an error message quotes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

START_S = 120.0
_LAST_LINES = 15


class ServiceDied(RuntimeError):
    """The child ended without an answer. The message has its exit code and the last lines that it printed."""


class Service:
    """One child process. It starts at once, in the background. Only one thread may ask; any thread may call ``end``.

    Args:
        module: name of the module whose ``serve`` the child runs.
        name: of the child in messages, such as "the compiler".
        environment: of the child; this process's by default.
    """

    def __init__(self, module: str, name: str, environment: Mapping[str, str] | None = None):
        self.name = name
        self._ready = False
        self._connection, theirs = multiprocessing.Pipe()
        # Native code writes to stderr, too: a compiler's diagnostics are in no exception.
        self._log = tempfile.TemporaryFile(mode="ab+")  # noqa: SIM115 (lives as long as the child)
        with theirs:
            self._process = subprocess.Popen(
                # By path, so that the caller's working directory cannot shadow a module.
                [sys.executable, __file__, module, str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C interrupts this process, which then ends the child
            )

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the child can still answer."""
        return not self._connection.closed and self._process.poll() is None

    def wait_until_ready(self, timeout: float = START_S) -> None:
        """Wait until the child has imported what it needs. Raises as ``ask``."""
        if not self._ready:
            self._receive(timeout)
            self._ready = True

    def ask(self, request: bytes, timeout: float) -> bytes:
        """Have a request answered within ``timeout`` seconds from when the child is ready.

        Raises:
            ServiceDied: the child died.
            TimeoutError: it did not answer in time. The child is ended after this and every other exception: its
                answer would arrive in reply to the next request.
        """
        try:
            self.wait_until_ready()
            with contextlib.suppress(ConnectionError):  # `_receive` then reports that the child is dead
                self._connection.send_bytes(request)
            return self._receive(timeout)
        except BaseException:
            self.close()
            raise

    def _receive(self, timeout: float) -> bytes:
        try:
            if self._connection.poll(timeout):
                return self._connection.recv_bytes()
        except (EOFError, ConnectionError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            lines = self.read_log().strip().splitlines()[-_LAST_LINES:]
            raise ServiceDied("\n".join([f"{self.name} died (exit {self._process.poll()})", *lines])) from None
        raise TimeoutError(f"{self.name} did not answer within {timeout:g} s")

    def read_log(self) -> str:
        """What the child has printed since the last call."""
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        self._log.truncate(0)
        return text

    def end(self) -> None:
        """Ask the child to end. A thread that waits for its answer gets ``ServiceDied``."""
        self._process.terminate()

    def close(self, grace: float = 0.0) -> None:
        """End the child; it gets ``grace`` seconds to clean up before it is killed."""
        self._connection.close()
        if grace:
            self.end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        self._process.kill()
        self._process.wait()
        self._log.close()


def answer_all(connection: Connection, answer: Callable[[bytes], bytes]) -> None:
    """In the child: report that it is ready, and answer requests until the other end is closed."""
    connection.send_bytes(b"")
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(answer(request))


if __name__ == "__main__":
    sys.path[0] = os.fspath(Path(__file__).resolve().parents[1])  # not this folder, whose modules have plain names
    # Garbage collection of what torch imports takes 0.2 s while it is imported, and 0.5 s when the process ends.
    gc.disable()
    module = importlib.import_module(sys.argv[1])
    gc.freeze()
    gc.enable()
    module.serve(Connection(int(sys.argv[2])))
