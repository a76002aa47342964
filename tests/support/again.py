"""Every cell of an executed notebook once more, on the names as all cells have left them: somebody who scrolls back.

It runs in the notebook's own kernel, as a last cell. A cell must print what it printed before, or raise the same error,
and no kernel may reach past the memory of a tensor: such an access is an error here, and not carried out.
"""

from __future__ import annotations

import contextlib
import gc
import re
import sys

import numpy as np
import torch

_TENSORS = (torch.Tensor, torch.nn.Parameter)


class OutsideError(Exception):
    """A kernel has read or written memory that belongs to no tensor."""


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """A tensor's memory on the CPU; None without: of the wrappers that ``torch.func`` leaves behind, for example."""
    if tensor.device.type != "cpu" or tensor.is_sparse:
        return None
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return None


class _Memory:
    """The addresses that belong to tensors: those of a launch's arguments, and of all others once one is needed."""

    def __init__(self):
        self.know([])

    def know(self, tensors) -> None:
        """Forget all others: between two launches, tensors come and go."""
        storages = [storage for each in tensors if (storage := _storage(each)) is not None]
        parts = sorted({(each.data_ptr(), each.data_ptr() + each.nbytes()) for each in storages if each.nbytes()})
        self.low, self.high = np.array(parts, dtype=np.int64).reshape(-1, 2).T

    def _holds(self, addresses: np.ndarray) -> bool:
        if not self.low.size:
            return False
        place = np.searchsorted(self.low, addresses, side="right") - 1
        return bool(((place >= 0) & (addresses < self.high[place])).all())

    def holds(self, addresses: np.ndarray) -> bool:
        """Whether all of these addresses are those of tensors."""
        if not self._holds(addresses):
            self.know(each for each in gc.get_objects() if type(each) in _TENSORS)
            return self._holds(addresses)
        return True


@contextlib.contextmanager
def guarded():
    """Within it, in Triton's interpreter, an access outside of all tensors raises `OutsideError`."""
    from triton.runtime import interpreter

    memory, builder = _Memory(), interpreter.InterpreterBuilder

    def look(ptrs, mask):
        addresses = np.atleast_1d(np.asarray(ptrs.data)).astype(np.int64)
        if mask is not None:
            addresses = addresses[np.broadcast_to(np.asarray(mask.data, dtype=bool), addresses.shape)]
        if addresses.size and not memory.holds(addresses):
            raise OutsideError("a kernel reaches past the memory of its tensors")

    load, store = builder.create_masked_load, builder.create_masked_store
    update, launch = builder.create_atomic_rmw, interpreter.GridExecutor.__call__

    def masked_load(self, ptrs, mask, *rest, **options):
        look(ptrs, mask)
        return load(self, ptrs, mask, *rest, **options)

    def masked_store(self, ptrs, value, mask, *rest, **options):
        look(ptrs, mask)
        return store(self, ptrs, value, mask, *rest, **options)

    def atomic_rmw(self, operation, ptrs, value, mask, *rest, **options):
        look(ptrs, mask)
        return update(self, operation, ptrs, value, mask, *rest, **options)

    def call(self, *args, **options):
        given = (getattr(each, "base", each) for each in (*args, *options.values()))  # a descriptor has a base
        memory.know([each for each in given if type(each) in _TENSORS])
        return launch(self, *args, **options)

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
    builder.create_atomic_rmw, interpreter.GridExecutor.__call__ = atomic_rmw, call
    try:
        yield
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store
        builder.create_atomic_rmw, interpreter.GridExecutor.__call__ = update, launch


def text_of(outputs) -> str:
    """What a cell has printed and shown as text; of an error, its type and message."""
    parts = []
    for each in outputs:
        if each["output_type"] == "error":
            parts.append(f"{each['ename']}: {each['evalue']}")
        else:
            parts.append(each.get("text") or each.get("data", {}).get("text/plain", ""))
    return "".join("".join(part) for part in parts)


def _run(shell, source: str) -> tuple[str, bool]:
    """Run a cell; what `text_of` would give for its outputs, and whether it raised no error."""
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        result = shell.run_cell(source, store_history=False)
    shown = "".join(each.data.get("text/plain", "") for each in captured.outputs)
    if result.success:
        return captured.stdout + shown, True
    error = result.error_before_exec or result.error_in_exec
    return f"{captured.stdout}{shown}{type(error).__name__}: {error}", False


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip()


def different(shell, cells) -> list[str]:
    """Run each of the code cells; a line for each that does not do what it did at first."""
    final = {name: value for name, value in shell.user_ns.items() if not name.startswith("_")}
    picture = shell.display_formatter.formatters["image/png"]
    found, enabled, picture.enabled = [], picture.enabled, False  # a picture's text says that it was drawn
    shell.showtraceback = lambda *_, **__: None  # an error that was expected would be sent to the client
    try:
        for number, cell in enumerate(cells):
            (got, good), expected = _run(shell, cell["source"]), text_of(cell["outputs"])
            shell.user_ns.update(final)
            tags = cell["metadata"].get("tags", [])
            fails = any(tag.endswith("raises-exception") for tag in tags)
            same = good != fails if "nbval-ignore-output" in tags else _plain(got) == _plain(expected)
            if not same:
                first = (cell["source"].splitlines() or [""])[0]
                found.append(
                    f"cell {number} ({first[:60]!r}): {_plain(got)[-300:]!r}, at first {_plain(expected)[-300:]!r}"
                )
    finally:
        picture.enabled = enabled
        del shell.showtraceback
    return found


def each_cell(path: str) -> None:
    """Run each cell of the notebook ``path`` again, in its kernel.

    Raises:
        AssertionError: a cell does not do what it did at first.
    """
    import nbformat
    from IPython import get_ipython

    cells = [each for each in nbformat.read(path, as_version=4).cells if each.cell_type == "code" and each.source]
    with guarded() if "triton" in sys.modules else contextlib.nullcontext():
        found = different(get_ipython(), cells)
    assert not found, "run again after the last cell:\n" + "\n".join(found)
