"""A kernel's own log: which program computed each tile, on which SM, and when.

The log is an int64 tensor of shape (tiles, 4): program, SM, start and end. ``RECORD`` is a compile-time choice, so
that a kernel without a log contains none of this code:

- ``RECORD_OFF``: nothing is written, ``log_ptr`` may be None.
- ``RECORD_PROGRAM``: the program alone; works in the interpreter.
- ``RECORD_TIME``: also the SM's number and the GPU's global clock in nanoseconds; NVIDIA GPUs only.
"""

from __future__ import annotations

from course_kernels.kernels.language import tl, triton  # isort: skip (sets Triton up)
from triton.language.extra.cuda import globaltimer, smid

from course_kernels.kernels.codes import Record

RECORD_OFF = tl.constexpr(int(Record.OFF))
RECORD_PROGRAM = tl.constexpr(int(Record.PROGRAM))
RECORD_TIME = tl.constexpr(int(Record.TIME))


@triton.jit
def start_clock(RECORD: tl.constexpr):
    """The global clock in nanoseconds, or 0 where no time is recorded."""
    if RECORD == RECORD_TIME:
        return globaltimer()
    else:
        return tl.full((), 0, tl.int64)


@triton.jit
def record_tile(log_ptr, tile, started, RECORD: tl.constexpr):
    """Write the log's row for a tile that this program has just finished."""
    if RECORD != RECORD_OFF:
        # A product with a 64-bit number, not a cast: a loop's index is a plain int in the interpreter.
        entry = log_ptr + tile * tl.full((), 4, tl.int64)
        tl.store(entry, tl.program_id(0).to(tl.int64))
    if RECORD == RECORD_TIME:
        tl.debug_barrier()  # without it the clock is read while the tile's stores are still being issued
        tl.store(entry + 1, smid().to(tl.int64))
        tl.store(entry + 2, started)
        tl.store(entry + 3, globaltimer())
