"""The Hopper kernel's parts for a layer of experts: what the compiler makes of them, without a GPU."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from course_kernels.kernels.codes import Activation, Function
from course_kernels.kernels.cute_sm90.config import CONFIGS_ALONG_K, COOPERATIVE, PINGPONG, CuteConfig
from course_kernels.kernels.cute_sm90.form import Form
from in_flight import disassembled

SWIGLU, RELU2 = Activation(Function.SILU), Activation(Function.RELU2, gated=False)
CLAMPED = Activation(Function.SILU, alpha=1.702, limit=7.0, shift=1.0)
# The most accumulators, one and two warp groups a tile.
WIDE = CuteConfig(128, 256, 64, 2, 4, COOPERATIVE)
TALL = CuteConfig(128, 192, 64, 2, 4, PINGPONG, split_last_wave=True)
SMALL = CuteConfig(64, 128, 128, 1, 4, PINGPONG)
# A poll of a piece of rows, and the end of a kernel that waited too long for one.
POLL, TRAP = r"ld\.acquire\.sys\.global", "trap;"


@dataclass
class Code:
    """The result of a compilation."""

    ptx: str
    cubin: bytes
    folder: Path

    @functools.cached_property
    def sass(self) -> str:
        """The machine code, disassembled only where a test reads it: that takes 0.25 s."""
        return disassembled(self.cubin, self.folder)


@pytest.fixture(scope="module")
def compiled(code_for, tmp_path_factory):
    """The code of a configuration, fitted to a form. Only a kernel whose rows come in pieces waits for rows. All wait
    for the end of the kernel before, and read and write after it."""
    folder = tmp_path_factory.mktemp("code")

    @functools.cache
    def checked(config, form):
        ptx, cubin = code_for(config.fitted(form), form, "bfloat16", "float32" if form.epilogue == "add" else None)
        assert form.rows == "pieces" or not re.search(f"{POLL}|{TRAP}", ptx)
        (waits,) = re.finditer(r"griddepcontrol\.wait", ptx)
        assert waits.end() < re.search(r"\b(?:ld|st|red|atom|cp\.async\S*)\.\S*global", ptx).start()
        return Code(ptx, cubin, folder)

    return checked


def spills(code: Code) -> list[str]:
    return re.findall(r"\.local\b", code.ptx) + re.findall(r"\b(?:LDL|STL)\b", code.sass)


def stores_of(ptx) -> list[int]:
    """Dimensions of each store from shared memory."""
    return [int(rank) for rank in re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\.global\.shared", ptx)]


def loads_of(ptx) -> list[int]:
    """Dimensions of each load through TMA."""
    return [int(rank) for rank in re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\.shared::\S*global", ptx)]


@pytest.mark.parametrize("config", [WIDE, TALL], ids=lambda config: config.name)
@pytest.mark.parametrize("epilogue", ["gated", "gated_pre"])
def test_an_activation_is_stored_at_once(compiled, config, epilogue):
    form = Form(epilogue=epilogue, activation=SWIGLU)
    code = compiled(config, form)
    ptx = code.ptx
    assert spills(code) == []
    fitted = config.fitted(form)
    cols = fitted.store_row_bytes // 2
    blocks = sum(each.tile_m // 64 // config.sharing_groups * (each.tile_n // 2 // cols) for each in config.shapes)
    # Of C in the four dimensions of a ragged descriptor, of gate and up in one more.
    of_pre = [5, 5] * (epilogue == "gated_pre")
    assert stores_of(ptx) == [*of_pre, 4] * blocks
    # A in two dimensions, B in four: gate and up in one box.
    assert set(loads_of(ptx)) == {2, 4}
    assert "st.global" not in ptx, "nothing but what is stored through shared memory; no zeros"
    sums = sum(each.tile_m // config.sharing_groups * each.tile_n // 2 for each in config.shapes) // 128
    assert ptx.count("ex2.approx") == ptx.count("rcp.approx") == sums
    # Of the rounded sums, which are read back: else a tile's stores would wait for all of its activations.
    assert ptx.count("ldmatrix") == 2 * blocks * (cols // 16) * (epilogue == "gated_pre")


def test_an_activation_without_a_gate(compiled):
    code = compiled(SMALL, Form(epilogue="gated_pre", activation=RELU2))
    ptx = code.ptx
    assert spills(code) == []
    assert set(loads_of(ptx)) == {2, 3}
    assert stores_of(ptx) == [4, 4] * 2
    assert "ex2.approx" not in ptx


@pytest.mark.parametrize("config", [WIDE, TALL], ids=lambda config: config.name)
def test_an_activations_argument_is_read_and_its_gradient_stored(compiled, config):
    form = Form(epilogue="gated_backward", activation=SWIGLU)
    code = compiled(config, form)
    ptx = code.ptx
    assert spills(code) == []
    sets = sum(each.tile_m // 64 // config.sharing_groups * (each.tile_n // 32) for each in config.shapes)
    assert stores_of(ptx) == [5, 5, 4] * sets
    assert loads_of(ptx).count(5) == 2 * sets
    # Sixteen columns at a time are read and written.
    assert ptx.count("ldmatrix") == 2 * 2 * sets
    assert ptx.count("stmatrix") == 2 * 3 * sets
    assert ptx.count("st.global.b32") == 2 * sets, "of the dot products a row a store"


@pytest.mark.parametrize("rows", ["ends", "pieces"])
def test_the_next_kernels_blocks_begin_after_the_last_load(compiled, rows):
    """Begun while rows are waited for, they would keep the SMs of the kernel that sends these."""
    ptx = compiled(WIDE, Form(rows=rows, load="gather", epilogue="gated", activation=SWIGLU)).ptx
    (lets,) = re.finditer(r"griddepcontrol\.launch_dependents", ptx)
    loads = [each.start() for each in re.finditer(r"cp\.async\.bulk\.tensor\.\dd\.shared::\S*global", ptx)]
    assert loads
    assert max(loads) < lets.start()


@pytest.mark.parametrize("epilogue", ["gated", "gated_pre", "gated_backward"])
def test_rows_in_pieces_are_waited_for(compiled, epilogue):
    """One poll of a piece, and one while it is not there."""
    code = compiled(WIDE, Form(rows="pieces", load="gather", epilogue=epilogue, activation=SWIGLU))
    ptx = code.ptx
    assert spills(code) == []
    assert len(re.findall(POLL, ptx)) == 2
    assert ptx.count(TRAP) == 1


def test_gathered_rows(compiled):
    """Eight copies for a row of 128 bytes; B alone through TMA; products fence before they read."""
    code = compiled(WIDE, Form(load="gather"))
    ptx = code.ptx
    assert spills(code) == []
    assert set(loads_of(ptx)) == {3}
    rows = 64  # of a warp
    assert len(re.findall(r"cp\.async\.cg\.shared\.global\.L2::128B", ptx)) == rows * 8 // 32
    assert ptx.count("cp.async.mbarrier.arrive.noinc") == 1
    fences = ptx.count("fence.proxy.async.shared::cta")
    plain = compiled(WIDE, Form()).ptx
    assert fences - plain.count("fence.proxy.async.shared::cta") == 2, "of a tile's first stage, and of the others"
    assert loads_of(plain).count(2) == 2


# The most accumulators of one and of two warp groups a tile, each with an order of tiles; the tallest tile.
@pytest.mark.parametrize("config", [CONFIGS_ALONG_K[i] for i in (0, 6, 11)], ids=lambda config: config.name)
@pytest.mark.parametrize("load", ["gather", "gather_b"])
def test_gathered_lines_along_k(compiled, config, load):
    """Of each line a copy for 16 bytes of a tile's columns; the other operand alone through TMA, in the four dimensions
    of a ragged descriptor, for one CTA or both."""
    form = Form("k", "n", load=load, epilogue="add")
    code = compiled(config, form)
    ptx = code.ptx
    assert spills(code) == []
    columns, others = config.tile_m, config.tile_n
    if load == "gather_b":
        columns, others = others, columns
    assert loads_of(ptx) == [4] * (others // 64 * config.cluster)  # a load is of 64 columns
    copies = 32 * (columns * 2 // 16) // 32  # of 32 lines by 32 lanes
    assert len(re.findall(r"cp\.async\.cg\.shared\.global\.L2::128B", ptx)) == copies
    assert ptx.count("cp.async.mbarrier.arrive.noinc") == 1
    # What is ignored is not read: past the group's end, and past the last column.
    copied = [line for line in code.sass.splitlines() if "LDGSTS." in line]
    assert len(copied) == copies
    assert all(re.search(r"\], !?P\d", line) for line in copied)


# Every pair of these, not every product: each takes seconds to compile, with and without a bias.
BIASES = [
    ("store", "tma", WIDE, 4), ("store", "gather", TALL, 2), ("gated", "tma", WIDE, 2), ("gated", "gather", TALL, 4),
    ("gated_pre", "tma", TALL, 4), ("gated_pre", "gather", WIDE, 2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("epilogue", "load", "config", "bias_bytes"), BIASES, ids=lambda each: getattr(each, "name", each)
)
def test_a_bias_is_added(compiled, config, epilogue, load, bias_bytes):
    """A warp loads each column once, and every pair of columns that a thread has comes by a shuffle of pairs of 16
    bits, or by two. The rest is the kernel without a bias."""
    plain = Form(epilogue=epilogue, load=load, activation=CLAMPED if epilogue != "store" else None)
    form = plain._replace(bias_bytes=bias_bytes)
    code = compiled(config, form)
    ptx = code.ptx
    assert spills(code) == []
    without = compiled(config, plain).ptx
    columns = sum(each.tile_n for each in config.shapes)
    shuffles = re.findall(r"shfl\.sync\.idx\.b32\s+\S+ \S+ (\d+), 799, -1;", ptx)
    assert [*map(int, shuffles)] == [j % 8 * 4 for j in range(columns // 8) for _ in range(bias_bytes // 2)]
    loads = re.compile(r"ld\.global")
    assert len(loads.findall(ptx)) - len(loads.findall(without)) == columns // 32
    sums = sum(each.tile_m // config.sharing_groups * each.tile_n for each in config.shapes) // 128
    assert (
        ptx.count("add.f32") + ptx.count("add.rn.f32") - without.count("add.f32") - without.count("add.rn.f32") == sums
    )
    assert stores_of(ptx) == stores_of(without)
    assert loads_of(ptx) == loads_of(without)


def test_a_bias_of_rows_in_pieces_and_without_a_gate(compiled):
    pieces = Form(rows="pieces", load="gather", epilogue="gated_pre", activation=SWIGLU, bias_bytes=2)
    assert spills(compiled(WIDE, pieces)) == []
    assert spills(compiled(SMALL, Form(epilogue="gated_pre", activation=RELU2, bias_bytes=4))) == []
    assert spills(compiled(SMALL, Form("m", "n", epilogue="gated", activation=SWIGLU, bias_bytes=2))) == []
