"""A GPU that does not exist: the CPU's tensors, presented to an answer as a GPU's, so that devices can be checked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.overrides import TorchFunctionMode

# Functions that take tensors of several devices: a copy's two ends, and an index, which is moved.
_TAKES_BOTH = {"to", "copy_", "__getitem__", "__setitem__", "set_", "type_as", "index_put_", "index_put"}
_HERE = torch.device("cpu")


class FakeGPU(TorchFunctionMode):
    """Presents the CPU's tensors as a GPU's.

    Their `device` is "cuda:0". Tensors made there are made on the CPU; tensors made without a device belong to the
    host, as on a machine with a GPU.
    """

    GPU = torch.device("cuda", 0)

    def __init__(self, mixed: Callable[[str], None] | None = None):
        """`mixed` is called with the name of each function that gets tensors on both devices, which a GPU refuses."""
        super().__init__()
        self._mixed = mixed
        self._host: dict[int, torch.Tensor] = {}  # by id, which is valid as long as the tensor is kept

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the GPU."""
        return id(tensor) not in self._host

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if function == torch.Tensor.device.__get__:
            return self.GPU if self.has(args[0]) else _HERE
        if function == torch.Tensor.is_cuda.__get__:
            return self.has(args[0])
        if name == "pin_memory":
            return args[0]
        kwargs.pop("pin_memory", None)
        if name == "cuda":
            name, function, args, kwargs = "to", torch.Tensor.to, (args[0], self.GPU), {}
        asked = kwargs.get("device")
        if asked is None and name == "to":
            asked = next((each for each in args[1:] if isinstance(each, (str, int, torch.device))), None)
        if asked is not None:
            args = tuple(_HERE if each is asked else each for each in args)
            kwargs = {key: _HERE if each is asked else each for key, each in kwargs.items()}
        sources = tensors_in(args, {} if name == "to" else kwargs)
        places = {self.has(each) for each in sources if each.dim()}
        if self._mixed is not None and len(places) > 1 and name not in _TAKES_BOTH:
            self._mixed(name)
        result = function(*args, **kwargs)
        if not isinstance(result, torch.Tensor):
            return result
        if asked is not None:
            on_gpu = isinstance(asked, int) or torch.device(asked).type == "cuda"
        elif name == "to" and len(sources) > 1:
            on_gpu = self.has(sources[1])
        elif name == "cpu":
            on_gpu = False
        else:
            # A list becomes a tensor on the host, also one of a GPU's tensors; a tensor's copy stays on the GPU.
            listed = name in ("tensor", "as_tensor") and isinstance((*args, *kwargs.values())[0], (list, tuple))
            on_gpu = bool(sources) and not listed and self.has(sources[0])
        if any(result is each for each in sources) and on_gpu != self.has(result):
            result = result.clone()  # on another device it would be a copy
        self._host.pop(id(result), None)
        if not on_gpu:
            self._host[id(result)] = result
        return result


def tensors_in(args, kwargs) -> list[torch.Tensor]:
    """The tensors among arguments, and in their lists and tuples."""
    flat = [each for arg in (*args, *kwargs.values()) for each in (arg if isinstance(arg, (list, tuple)) else (arg,))]
    return [each for each in flat if isinstance(each, torch.Tensor)]
