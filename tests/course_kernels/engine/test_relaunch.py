"""Relaunching a kernel: what Triton's launcher receives, for both ways in which Triton has written it."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("triton", reason="needs triton, which Linux has")

from triton import knobs

from course_kernels.engine import relaunch as relaunch_module
from course_kernels.engine.relaunch import Address, Relaunch

ENCODED = []


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(relaunch_module, "make_context_current", lambda: None)


class PyCUtensorMap:
    def __init__(self, address):
        self.address = address


class Descriptor:
    def __init__(self):
        self.base, self.shape = Address("fp16"), [8, 16]


def make_tensordesc_arg(descriptor, meta):
    """In place of Triton's function of this name: the map, then extents."""
    ENCODED.append((descriptor.base.data_ptr(), meta, descriptor.shape[0]))
    return [PyCUtensorMap(descriptor.base.data_ptr()), *descriptor.shape]


def wrap_flat(launcher, tensordesc_indices, tensordesc_meta):
    def inner(*args):
        final, at = list(args[:4]), 0
        for i, argument in enumerate(args[4:]):
            if i in tensordesc_indices:
                final += make_tensordesc_arg(argument, tensordesc_meta[at])
                at += 1
            else:
                final.append(argument)
        return launcher(*final)

    return inner


def wrap_nested(launcher, tensordesc_indices, tensordesc_meta):
    """As ``wrap_flat``, but the kernel's arguments travel in a list of their own."""

    def inner(*args):
        final, at = [], 0
        for i, argument in enumerate(args[-1]):
            if i in tensordesc_indices:
                final += make_tensordesc_arg(argument, tensordesc_meta[at])
                at += 1
            else:
                final.append(argument)
        return launcher(*args[:-1], final)

    return inner


class Launcher:
    global_scratch_size = 0

    def __init__(self, wrap, seen):
        self.nested = wrap is wrap_nested
        self.launch = wrap(lambda *args: seen.append(args), {0, 2}, ["meta of a", "meta of c"])

    def __call__(self, x, y, z, stream, function, packed, metadata, enter, leave, *args):
        self.launch(x, stream, function, packed, *([args] if self.nested else args))


class Compiled:
    function, packed_metadata = "function", (4, 1, 0)

    def __init__(self, wrap):
        self.seen, self.slow = [], 0
        self.run = Launcher(wrap, self.seen)

    def __getitem__(self, grid):
        def runner(*args, stream=None):
            self.slow += 1
            self.run(*grid, stream, self.function, self.packed_metadata, None, None, None, *args)

        return runner


def flattened(call):
    return [*call[:-1], *call[-1]] if isinstance(call[-1], (list, tuple)) else list(call)


def received(call):
    """A launch as plain values, descriptors by the address that was encoded."""
    return [value.address if isinstance(value, PyCUtensorMap) else value for value in flattened(call)]


def relaunch(wrap):
    """Of a kernel (a descriptor that the total bounds, the total, a descriptor, a pointer, None, a flag)."""
    compiled = Compiled(wrap)
    return compiled, made(compiled)


def made(compiled):
    arguments = [Descriptor(), 8, Descriptor(), None, None, True]
    return Relaunch(compiled, 132, arguments, {0: 1, 2: 0, 3: 0}, {0: 0, 1: None})


@pytest.mark.parametrize("wrap", [wrap_flat, wrap_nested])
def test_addresses_reach_the_launcher_in_their_places(wrap):
    compiled, launch = relaunch(wrap)
    calls = (([0x100, 0x200], 7, 132, 8), ([0x300, 0x200], 8, 5, 8), ([0x100, 0x400], 7, 132, 9), ([0, 16], 7, 132, 8))
    for addresses, stream, programs, total in calls:
        launch(addresses, stream, programs, total)
        first, second = addresses
        want = [programs, stream, "function", (4, 1, 0), second, total, 16, total, first, 8, 16, first, None, True]
        assert received(compiled.seen[-1]) == want
    assert compiled.slow == 0


def test_a_descriptor_is_encoded_once_for_each_address_and_bound():
    _, launch = relaunch(wrap_flat)
    ENCODED.clear()
    for _ in range(3):
        for second, total in ((0x200, 8), (0x500, 8), (0x500, 9)):
            launch([0x100, second], 7, 132, total)
    a = [(0x200, "meta of a", 8), (0x500, "meta of a", 8), (0x500, "meta of a", 9)]
    assert sorted(ENCODED) == [(0x100, "meta of c", 8), *a]


@pytest.mark.parametrize("listened", [False, True], ids=["short", "triton"])
def test_a_context_is_current_before_a_descriptor_is_encoded(monkeypatch, listened):
    """Triton makes one current in its launcher, which comes after."""
    _, launch = relaunch(wrap_flat)
    ENCODED.clear()
    monkeypatch.setattr(relaunch_module, "make_context_current", lambda: ENCODED.append("current"))
    if listened:
        monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [lambda metadata: None])
    launch([0x100, 0x200], 7, 132, 8)
    assert ENCODED[0] == "current"
    assert len(ENCODED) > 2
    if not listened:
        before = len(ENCODED)
        launch([0x100, 0x200], 7, 132, 8)
        assert len(ENCODED) == before, "no descriptor was encoded, so nothing was to be made current"


def test_encoded_descriptors_age():
    _, launch = relaunch(wrap_flat)
    ENCODED.clear()
    for second in [*range(300), 299, 0]:
        launch([0x100, second], 7, 132, 8)
    again = [address for address, meta, _ in ENCODED if meta == "meta of a"][300:]
    assert again == [0]


def test_a_launcher_that_looks_different_is_used_as_it_is():
    compiled = Compiled(wrap_flat)
    inner = compiled.run.launch
    compiled.run.launch = lambda *args: inner(*args)  # no `launcher` in what it closes over
    launch = made(compiled)
    launch([0x100, 0x200], 7, 5, 9)
    assert compiled.slow == 1
    want = [5, 7, "function", (4, 1, 0), 0x200, 9, 16, 9, 0x100, 8, 16, 0x100, None, True]
    assert received(compiled.seen[-1]) == want


class Plain(Launcher):
    """A kernel without descriptors. Triton calls its C function directly, without a wrapper in Python."""

    def __init__(self, nested, seen):
        self.nested, self.launch = nested, lambda *args: seen.append(args)


@pytest.mark.parametrize("nested", [True, False])
def test_a_kernel_without_descriptors_needs_no_wrapper(nested):
    compiled = Compiled(wrap_flat)
    compiled.run = Plain(nested, compiled.seen)
    launch = Relaunch(compiled, 132, [0, None, 8, 5, 0], {0: 1, 4: 0}, {2: None})
    for first, second, stream, programs, total in ((0x100, 0x200, 7, 132, 8), (0x300, 0, 9, 1, 12)):
        launch([first, second], stream, programs, total)
        assert received(compiled.seen[-1]) == [programs, stream, "function", (4, 1, 0), second, None, total, 5, first]
    assert compiled.slow == 0


def test_threads_take_turns():
    """A launch reads arguments that the next one changes."""
    compiled, wrong = Compiled(wrap_flat), []

    def check(*args):
        before = list(args[-1])
        time.sleep(1e-3)  # lets another thread run
        wrong.extend([] if before == list(args[-1]) else [before])

    compiled.run = Plain(True, compiled.seen)
    compiled.run.launch = check
    launch = Relaunch(compiled, 132, [0, 8], {0: 0}, {1: None})
    threads = [threading.Thread(target=launch, args=([i], 7, 1, i)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_profiler_that_listens_gets_triton_s_own_launch(monkeypatch):
    compiled, launch = relaunch(wrap_flat)
    monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [lambda metadata: None])
    launch([0x100, 0x200], 7, 132, 8)
    assert compiled.slow == 1
