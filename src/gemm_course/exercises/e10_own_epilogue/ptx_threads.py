"""Follows the threads of one CTA through PTX, to judge an epilogue by its numbers where there is no GPU.

It knows the arithmetic of PTX, branches, and stores to shared and local memory. wgmma leaves given sums in registers;
barriers, fences and copies do nothing. A register of all threads is one NumPy array. Threads that are furthest behind
run first, so diverged threads reconverge. The text is untrusted: it is never executed, and its size and the steps are
limited.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

MAX_COST = 100_000  # of steps; a long statement counts more. The solution's is below 4,000
MAX_CHARACTERS = 1 << 18  # ten times the solution's; it also limits the registers, 2 KiB each
SHARED_BYTES, LOCAL_BYTES = 228 << 10, 4 << 10
SHARED_BASE = 1024  # where dynamic shared memory begins; any address works
PARAMETER = 64  # all extents: one block along K

_LABEL = re.compile(r"([$\w]+):\s*")
# A brace or bracket without its partner ends at the next one: to look for it in the whole text again and again would
# take time in the square of the text's length.
_OPERAND = re.compile(r"(?:\{[^{}]*\}|\[[^][]*\]|[^,{\[])+")
_SKIPPED = re.compile(
    r"(fence|bar|barrier|setmaxnreg|prefetch|membar)\b|wgmma\.(fence|commit|wait)|mbarrier\.(init|arrive|inval)|"
    r"cp\.async\.bulk\.(commit|wait|tensor\.\dd\.shared)|griddepcontrol"
)
_COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
            "eq": np.equal, "ne": np.not_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
            "hs": np.greater_equal}  # fmt: skip
_UNARY = {"neg": np.negative, "abs": np.abs, "ex2": np.exp2, "lg2": np.log2, "tanh": np.tanh, "sqrt": np.sqrt,
          "sin": np.sin, "cos": np.cos, "rcp": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x)}  # fmt: skip
_BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.fmin, "max": np.fmax,
           "copysign": lambda sign, x: np.copysign(x, sign)}  # fmt: skip
_BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


class CannotFollow(ValueError):
    """Raised for an instruction that is not supported here, or a text that is not a kernel."""


class Instruction(NamedTuple):
    """One statement: the predicate before it, the operation, its operands."""

    guard: str
    op: str
    operands: list[str]


class Followed(NamedTuple):
    """The result: C's tile as bits of 16-bit numbers, where it was stored, and whether local memory was used."""

    bits: np.ndarray  # (rows, columns) uint16
    stored: np.ndarray  # bool, like bits
    local: bool


def follow(text: str, sums: np.ndarray) -> Followed:
    """Follow the threads of the warp groups that multiply, from the kernel's start to its end.

    Args:
        text: PTX of a kernel that stores one tile through shared memory, with warp groups 1 and 2 multiplying.
        sums: (128, columns) float32, the tile's sums.

    Raises:
        CannotFollow: the message is about an instruction.
    """
    if len(text) > MAX_CHARACTERS:
        raise CannotFollow(f"the PTX has {len(text)} characters")
    threads = _Threads(_parse(text), sums)
    with np.errstate(all="ignore"):
        try:
            threads.run()
        except CannotFollow:
            raise
        except (LookupError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
            raise CannotFollow(str(error)[:200]) from error
    if threads.tile_at is None:
        raise CannotFollow("no tile is copied from shared memory to C")
    end = threads.tile_at + 2 * sums.size
    if end > SHARED_BYTES:
        raise CannotFollow("the tile is outside of shared memory")
    part = slice(threads.tile_at, end)
    bits = threads.shared[part].view(np.uint16).reshape(sums.shape)
    return Followed(bits, threads.written[part].reshape(*sums.shape, 2).all(-1), threads.used_local)


def _parse(text: str) -> tuple[list[Instruction], dict[str, list[int]]]:
    """The statements in order, and for each label the places that have it: blocks repeat labels."""
    code, labels = [], {}
    begin = text.find(".visible .entry")
    for line in text[text.find("\n{", begin) + 2 :].splitlines() if begin >= 0 else []:
        line = line.partition("//")[0].strip().rstrip(";").strip()
        at = 0
        while found := _LABEL.match(line, at):
            labels.setdefault(found[1], []).append(len(code))
            at = found.end()
        if found := re.match(r"(?:@(!?%?\w+)\s+)?([a-z][\w.:]*)\s*(.*)$", line[at:]):
            code.append(Instruction(found[1] or "", found[2], _split(found[3])))
    if not code:
        raise CannotFollow("there is no kernel in it")
    return code, labels


def _split(text: str) -> list[str]:
    """Operands, at the commas outside of braces and brackets."""
    return [each.strip() for each in _OPERAND.findall(text) if each.strip()]


def _width(kind: str) -> int:
    """Bits of a type."""
    width = int(kind[1:])
    if width > 64:
        raise CannotFollow(f"the type {kind[:20]} is not known here")
    return width


def _decode(kind: str, bits: np.ndarray) -> np.ndarray:
    """Bits as numbers: float64, or 64-bit integers."""
    if kind == "f32":
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)
    if kind == "f64":
        return bits.view(np.float64)
    if kind == "f16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    width = _width(kind)
    low = bits & np.uint64((1 << width) - 1)
    if kind[0] != "s":
        return low
    shift = np.uint64(64 - width)
    return (low << shift).view(np.int64) >> np.int64(64 - width)


def _encode(kind: str, value: np.ndarray, rounding: str = "rn") -> np.ndarray:
    """Numbers as bits, rounded to nearest, or down or up or to zero."""
    if kind == "f64":
        return value.astype(np.float64).view(np.uint64)
    if kind == "f16":
        return value.astype(np.float16).view(np.uint16).astype(np.uint64)
    if kind in ("f32", "bf16"):
        bits = value.astype(np.float32)
        if kind == "f32" and rounding in ("rm", "rz", "rp"):
            past = {"rm": bits > value, "rp": bits < value, "rz": np.abs(bits) > np.abs(value)}[rounding]
            toward = {"rm": -np.inf, "rp": np.inf, "rz": 0}[rounding]
            bits = np.where(past, np.nextafter(bits, np.float32(toward)), bits)
        bits = bits.astype(np.float32).view(np.uint32).astype(np.uint64)
        if kind == "f32":
            return bits
        odd = bits >> np.uint64(16) & np.uint64(1)
        rounded = bits + np.uint64(0x7FFF) + odd if rounding == "rn" else bits
        return np.where(np.isnan(value), np.uint64(0x7FFF), rounded >> np.uint64(16) & np.uint64(0xFFFF))
    mask = np.uint64((1 << _width(kind)) - 1)
    return value.astype(np.int64).view(np.uint64) & mask if value.dtype.kind != "u" else value & mask


class _Threads:
    """Threads 128 to 383 of a CTA, their registers, and its shared memory."""

    def __init__(self, parsed: tuple[list[Instruction], dict[str, list[int]]], sums: np.ndarray):
        self.code, self.labels = parsed
        self.number = np.arange(128, 384, dtype=np.uint64)
        count = len(self.number)
        self.registers: dict[str, np.ndarray] = {}
        self.at = np.zeros(count, dtype=np.int64)
        self.shared = np.full(SHARED_BYTES, 0xFF, dtype=np.uint8)
        self.written = np.zeros(SHARED_BYTES, dtype=bool)
        self.local = np.zeros((count, LOCAL_BYTES), dtype=np.uint8)
        self.used_local, self.tile_at, self.budget = False, None, MAX_COST
        thread = np.arange(count)
        row, col = thread // 128 * 64 + thread % 128 // 32 * 16 + thread % 32 // 4, thread % 4 * 2
        # wgmma's layout: a thread has pairs of columns, 8 apart, of two rows, 8 apart.
        self.sums = [
            sums[row + 8 * (i // 2 % 2), col + i % 2 + i // 4 * 8].view(np.uint32).astype(np.uint64)
            for i in range(sums.size // count)
        ]

    def run(self) -> None:
        """All threads to the end."""
        while (here := int(self.at.min())) < len(self.code):
            each = self.code[here]
            self._spend(1 + sum(map(len, (each.guard, each.op, *each.operands))) // 16)
            active = self.at == here
            self.at[active] += 1
            if each.guard:
                value = self._read(each.guard.lstrip("!")).astype(bool)
                active = active & (~value if each.guard[0] == "!" else value)
            if active.any():
                self._execute(each, here, active)

    def _spend(self, cost: int) -> None:
        self.budget -= cost
        if self.budget < 0:
            raise CannotFollow("it takes too many steps")

    # ---- operands

    def _read(self, name: str) -> np.ndarray:
        """An operand's bits."""
        if name in self.registers:
            return self.registers[name]
        same = lambda bits: np.full(len(self.number), bits, dtype=np.uint64)  # noqa: E731
        if name == "%tid.x":
            return self.number
        if name.startswith(("%ctaid", "%nctaid", "%cluster", "%tid", "%SP")):
            return same(int(name.startswith("%nctaid")))
        if found := re.fullmatch(r"0[fd]([0-9A-Fa-f]+)", name):
            return same(int(found[1], 16))
        if re.fullmatch(r"-?\d+|-?0x[0-9A-Fa-f]+", name):
            return same(int(name, 0) & (2**64 - 1))
        if "shmem" in name:
            return same(SHARED_BASE)
        if re.fullmatch(r"[A-Za-z_]\w{8,}", name):  # a parameter, or local memory
            return same(0)
        return same(0) if name.startswith("%") else self._unknown(name)

    def _unknown(self, what: str):
        raise CannotFollow(f"{what} is not known here")

    def _write(self, name: str, bits: np.ndarray, active: np.ndarray) -> None:
        if name != "_":
            before = self.registers.get(name)
            if before is None:
                before = np.zeros(len(self.number), dtype=np.uint64)
            self.registers[name] = np.where(active, bits, before)

    def _address(self, operand: str) -> np.ndarray:
        """The byte address that an operand such as `[%r1+16]` means."""
        name, _, more = operand.strip("[]").partition("+")
        return (self._read(name.strip()).astype(np.int64) + int(more or 0)) & 0xFFFFFFFF

    def _values(self, kind: str, names: list[str]) -> list[np.ndarray]:
        return [_decode(kind, self._read(name)) for name in names]

    # ---- instructions

    def _execute(self, each: Instruction, here: int, active: np.ndarray) -> None:
        op, to = each.op, each.operands
        name, *more = op.split(".")
        kind = more[-1] if more else ""
        if name == "bra":
            self.at[active] = self._target(to[0], here)
        elif name in ("ret", "exit"):
            self.at[active] = len(self.code)
        elif op.startswith("wgmma.mma_async"):
            names = _split(to[0].strip("{}"))
            if len(names) != len(self.sums):
                raise CannotFollow(f"a wgmma has {len(names)} sums for a thread, not {len(self.sums)}")
            for register, bits in zip(names, self.sums):
                self._write(register, bits, active)
        elif op.startswith("cp.async.bulk.tensor.2d.global.shared"):
            self.tile_at = int(self._address(to[1])[active][0])
        elif op.startswith("mbarrier.try_wait"):
            self._write(to[0], np.ones_like(self.number), active)
        elif name == "elect":
            self._write(to[0].partition("|")[2], (self.number % np.uint64(32) == 0).astype(np.uint64), active)
        elif _SKIPPED.match(op):
            pass
        elif name in ("st", "ld"):
            self._memory(name, more, to, active)
        elif name == "shfl" and more[1] == "idx":
            lane = self._read(to[2]).astype(np.int64) % 32
            self._write(to[0].partition("|")[0], self._read(to[1])[np.arange(len(lane)) // 32 * 32 + lane], active)
        elif name in ("mov", "cvta"):
            self._move(_width(kind), to, active)
        elif name == "cvt":
            self._convert(more, to, active)
        elif kind.endswith("x2"):
            self._on_both(name, more, to, active)
        else:
            self._write(to[0], self._compute(name, more, kind, to[1:]), active)

    def _target(self, label: str, here: int) -> int:
        places = self.labels[label]
        return places[min(bisect_right(places, here), len(places) - 1)]

    def _memory(self, name: str, more: list[str], to: list[str], active: np.ndarray) -> None:
        space, width = more[0], int(more[-1][1:]) // 8
        if name == "ld" and space == "param":
            self._write(to[0], np.full_like(self.number, PARAMETER), active)
            return
        if space not in ("shared", "local") or (name, space) == ("ld", "shared"):
            raise CannotFollow(f"{name}.{space} is not known here")
        names, place = (to[1], to[0]) if name == "st" else (to[0], to[1])
        address = self._address(place)
        lanes = np.flatnonzero(active)
        registers = _split(names.strip("{}"))
        self._spend(width * len(registers))
        for i, register in enumerate(registers):
            for byte in range(width):
                at = address[lanes] + i * width + byte
                if name == "ld":
                    got = self.local[lanes, at].astype(np.uint64) << np.uint64(8 * byte)
                    before = self._read(register)[lanes] if byte else np.uint64(0)
                    bits = np.zeros_like(self.number)
                    bits[lanes] = before | got
                    self._write(register, bits, active)
                    continue
                value = (self._read(register)[lanes] >> np.uint64(8 * byte)).astype(np.uint8)
                if space == "shared":
                    self.shared[at], self.written[at] = value, True
                else:
                    self.local[lanes, at] = value
        self.used_local |= space == "local"

    def _move(self, width: int, to: list[str], active: np.ndarray) -> None:
        """`mov`, also from several registers to one, and back."""
        parts = _split(to[1].strip("{}")) if to[1].startswith("{") else [to[1]]
        bits = np.zeros_like(self.number)
        for i, part in enumerate(parts):
            step = width // len(parts)
            bits |= (self._read(part) & np.uint64((1 << step) - 1)) << np.uint64(i * step)
        names = _split(to[0].strip("{}")) if to[0].startswith("{") else [to[0]]
        for i, register in enumerate(names):
            step = width // len(names)
            self._write(register, bits >> np.uint64(i * step) & np.uint64((1 << step) - 1), active)

    def _convert(self, more: list[str], to: list[str], active: np.ndarray) -> None:
        """`cvt.rounding.to.from`; of two numbers the first is the high half."""
        target, source = [each for each in more if re.fullmatch(r"[a-z]+\d+(x2)?", each)][-2:]
        rounding = next((each for each in more if each in ("rm", "rz", "rp")), "rn")
        values = self._values(source, to[1:])
        if "sat" in more:
            values = [np.clip(each, 0, 1) for each in values]
        if "relu" in more:
            values = [np.fmax(each, 0) for each in values]
        if target.endswith("x2"):
            high, low = (_encode(target[:-2], each, rounding) for each in values)
            self._write(to[0], high << np.uint64(16) | low, active)
            return
        if target[0] in "su" and source[0] in "fb" and "f" in source:
            value = next((f(values[0]) for how, f in _TO_INTEGER.items() if how in more), values[0])
            values = [np.nan_to_num(value)]
        self._write(to[0], _encode(target, values[0], rounding), active)

    def _on_both(self, name: str, more: list[str], to: list[str], active: np.ndarray) -> None:
        """An operation on two 16-bit numbers of a register."""
        kind, bits = more[-1][:-2], np.zeros_like(self.number)
        for half in (0, 16):
            operands = [self._read(each) >> np.uint64(half) & np.uint64(0xFFFF) for each in to[1:]]
            bits |= self._apply(name, more, kind, [_decode(kind, each) for each in operands]) << np.uint64(half)
        self._write(to[0], bits, active)

    def _compute(self, name: str, more: list[str], kind: str, names: list[str]) -> np.ndarray:
        if kind == "pred":
            values = [self._read(each).astype(bool) for each in names]
            return (~values[0] if name == "not" else _BITS[name](*values)).astype(np.uint64)
        if name == "selp":
            return np.where(self._read(names[2]).astype(bool), self._read(names[0]), self._read(names[1]))
        if name in ("shl", "shr"):
            value, by = _decode(kind, self._read(names[0])), self._read(names[1]) & np.uint64(0xFFFFFFFF)
            width = int(kind[1:])
            by = np.minimum(by, np.uint64(63))
            if name == "shl":
                shifted = np.where(by < width, value << by.astype(value.dtype), 0).astype(value.dtype)
            else:
                shifted = value >> by.astype(value.dtype)
            return _encode(kind, shifted)
        return self._apply(name, more, kind, self._values(kind, names))

    def _apply(self, name: str, more: list[str], kind: str, values: list[np.ndarray]) -> np.ndarray:
        """An operation's result, as bits."""
        rounding = next((each for each in more if each in ("rm", "rz", "rp")), "rn")
        if name == "setp":
            how = more[0]
            unordered = how[-1] == "u" and how != "u" and "f" in kind
            found = _COMPARE[how[:-1] if unordered else how](*values[:2])
            if "f" in kind:
                either = np.isnan(values[0]) | np.isnan(values[1])
                found = found | either if unordered else found & ~either
            return found.astype(np.uint64)
        if name == "not":
            return _encode(kind, ~values[0])
        if name in ("fma", "mad"):
            product, kind = values[0] * values[1], _wide(kind, more)
            return _encode(kind, product + values[2], rounding)
        if name in _BITS:
            return _encode(kind, _BITS[name](*values))
        if name == "mul" and "hi" in more:
            self._unknown("mul.hi")
        function: Callable = _UNARY.get(name) or _BINARY.get(name) or self._unknown(name)
        if name in ("div", "rcp") and "f" not in kind:
            self._unknown(f"{name}.{kind}")
        return _encode(_wide(kind, more), function(*values), rounding)


_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _wide(kind: str, more: list[str]) -> str:
    """The type of a result: twice as wide after `mul.wide`."""
    return f"{kind[0]}{2 * int(kind[1:])}" if "wide" in more else kind
