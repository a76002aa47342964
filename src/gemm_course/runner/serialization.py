"""Values as bytes, without pickle: a message from a process that ran a learner's code must not run code here.

A message is one JSON header and the raw bytes of its tensors. Lists, dicts with string keys, numbers, strings, None
and tensors travel; tensors arrive contiguous and on the CPU.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time

import torch

MAX_BYTES = 64 << 20  # of all messages that one reader takes
MAX_HEADERS = 4 << 20  # of their headers alone: JSON takes many times its size, and some time, to read
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
    torch.bool, torch.bfloat16, torch.float8_e4m3fn,
)}  # fmt: skip
_MAX_DIMS = 64  # torch goes through a tensor's dimensions one inside the other, and dies of many
_MESSAGE = 1 << 10  # what a message counts among the headers, beside its own: each takes some memory and time
_KEY = "__tensor__"


def travels(tensor: torch.Tensor) -> bool:
    """True if a tensor can be sent: dense, of few dimensions and a type that has bytes, on a device that holds some."""
    dense = tensor.layout == torch.strided and tensor.dim() <= _MAX_DIMS
    return dense and tensor.dtype in _DTYPES.values() and tensor.device.type != "meta"


def pack(value) -> bytes:
    """One message. Raises TypeError if it holds something that cannot travel."""
    blobs: list[bytes] = []

    def plain(part):
        if type(part) is torch.Tensor:
            data = part.detach().cpu().contiguous()
            raw = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
            blobs.append(raw)
            return {_KEY: [str(part.dtype).removeprefix("torch."), list(part.shape), len(raw)]}
        if isinstance(part, dict):
            return {str(key): plain(each) for key, each in part.items()}
        if isinstance(part, (list, tuple)):
            return [plain(each) for each in part]
        if part is None or isinstance(part, (bool, int, float, str)):
            return part
        raise TypeError(f"cannot send a {type(part).__name__}")

    header = json.dumps(plain(value)).encode()
    body = b"".join(blobs)
    return struct.pack("<QQ", len(header), len(body)) + header + body


def unpack(header: bytes, body: bytes):
    """The value of one message. Raises ValueError if the bytes are none."""
    at = 0

    def rich(part):
        nonlocal at
        if isinstance(part, list):
            return [rich(each) for each in part]
        if not isinstance(part, dict):
            return part
        if part.keys() != {_KEY}:
            return {key: rich(each) for key, each in part.items()}
        name, shape, size = part[_KEY]
        dtype = _DTYPES[name]
        count = 1
        if len(shape) > _MAX_DIMS:
            raise ValueError(f"a tensor of {len(shape)} dimensions")
        for extent in shape:
            if not isinstance(extent, int) or extent < 0:
                raise ValueError("a shape with an extent that is no count")
            count *= extent
        if size != count * dtype.itemsize or at + size > len(body):
            raise ValueError("a tensor whose size does not fit its shape")
        raw = bytearray(body[at : at + size])
        at += size
        return torch.frombuffer(raw, dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)

    try:
        return rich(json.loads(header))
    except (KeyError, TypeError, OverflowError, RuntimeError) as error:  # the last also for a shape torch refuses
        raise ValueError(f"not a message: {error!r}") from None


class Reader:
    """Reads messages from a pipe's end, and never waits longer than asked."""

    def __init__(self, fd: int):
        self.fd = fd
        self.closed = False
        self._buffer = bytearray()
        self._bytes = self._headers = 0

    def pump(self) -> None:
        """Read what has arrived; call when the descriptor is readable."""
        data = os.read(self.fd, 1 << 20)
        self.closed = self.closed or not data
        self._buffer += data

    def messages(self) -> list:
        """Every message that is complete. Raises ValueError if one is malformed, or they are too large together."""
        found = []
        while len(self._buffer) >= 16:
            header, body = struct.unpack_from("<QQ", self._buffer)
            if self._headers + header + _MESSAGE > MAX_HEADERS or self._bytes + header + body > MAX_BYTES:
                raise ValueError("messages larger than they may be")
            end = 16 + header + body
            if len(self._buffer) < end:
                break
            found.append(unpack(bytes(self._buffer[16 : 16 + header]), bytes(self._buffer[16 + header : end])))
            del self._buffer[:end]
            self._headers, self._bytes = self._headers + header + _MESSAGE, self._bytes + header + body
        return found

    def next(self, timeout: float):
        """The next message; None if the other end is closed or time is up."""
        stop = time.monotonic() + timeout
        while True:
            if found := self.messages():
                return found[0]
            remaining_s = stop - time.monotonic()
            if self.closed or remaining_s <= 0 or not select.select([self.fd], [], [], remaining_s)[0]:
                return None
            self.pump()


def send(fd: int, value) -> None:
    """Write one message to a descriptor, all of it."""
    data = memoryview(pack(value))
    while data:
        data = data[os.write(fd, data) :]
