"""Triton's interpreter for answers.

It is about three times as fast, because it prepares `triton.language`, looks up types and describes shapes once and not
at every call, and computes nothing for assertions that it does not make. It also takes masks of scalar conditions. It
gives an answer nothing of its own, and no memory but that of tensors.
"""

from __future__ import annotations

import dataclasses
import weakref

import numpy as np
import torch

ACCESSES = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas")


def prepare_once() -> None:
    """Prepare the language once per launch, and not again at each call of a device function.

    A launch replaces every function of `triton.language` by one that computes, and puts the originals back when it
    ends. Each call of a device function in between goes through all of them once more, and finds nothing to replace;
    in kernels of small tiles that takes as long as all the rest. An operation that asks for numpy's name of a type
    builds the table of all of them first, a tenth of the rest. A sum, a difference or a product of integers is computed
    again in 64 bits and compared with the limits of its type, nearly a third of a walk over tiles; but the assertion
    that it is within them is made in debug mode only. So are those of a learner's `tl.device_assert`: debug mode is
    turned on, and that computation off. And every block checks and describes its shape anew, a quarter of the rest.
    Nothing is changed if Triton's insides are not as expected.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    builder = getattr(interpreter, "interpreter_builder", None)
    options = getattr(builder, "options", None)
    if getattr(options, "sanitize_overflow", False) and getattr(options, "debug", None) is False:
        builder.options = dataclasses.replace(options, sanitize_overflow=False, debug=True)
    genuine, nothing = getattr(interpreter, "_patch_lang", None), getattr(interpreter, "_LangPatchScope", None)
    if genuine is None or nothing is None or hasattr(genuine, "genuine"):
        return

    names_of: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # of the languages that a function knows

    def patch_lang(fn):
        known = fn.__globals__
        count, names = names_of.get(fn, (0, ()))
        if count != len(known):
            names = [name for name, value in known.items() if value is tl or value is tl.core]
            names_of[fn] = len(known), names
        languages = [value for name in names if (value := known.get(name)) is tl or value is tl.core]
        if languages and not any(tl.core.is_builtin(language.load) for language in languages):
            return nothing()
        return genuine(fn)

    patch_lang.genuine = genuine
    interpreter._patch_lang = patch_lang
    if (make_table := getattr(interpreter, "_get_np_dtype", None)) is not None:
        interpreter._get_np_dtype = _remembering(make_table, tl.dtype)
    _remember_shapes(tl.core)


def _remember_shapes(core) -> None:
    """Check and describe a shape of blocks once, and not for every block that has it."""
    if not (hasattr(core, "block_type") and hasattr(core, "tensor")) or hasattr(core.tensor.__init__, "genuine"):
        return
    make_type, make_block = core.block_type.__init__, core.tensor.__init__
    types: dict[tuple, tuple] = {}
    sequences = {list, getattr(core, "tuple", tuple)}
    blocks: dict[int, tuple] = {id(()): ()}  # by the identity of a remembered shape: to compare shapes is slow

    def type_of_block(self, element_ty, shape):
        key = *shape, getattr(element_ty, "name", None)
        known = types.get(key) if type(shape) in sequences and {*map(type, shape)} == {int} else None
        if known is not None:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = known
            return
        make_type(self, element_ty, shape)
        fields = {"element_ty", "shape", "numel", "name"}
        if key not in types and {*map(type, key)} == {int, str} and vars(self).keys() == fields:
            types[key] = self.shape, self.numel, self.name
            blocks[id(self.shape)] = ()

    def block(self, handle, type):  # Triton's name of the argument
        shape = type.shape if type.is_block() else ()
        known = blocks.get(id(shape))
        if known:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known
            return
        make_block(self, handle, type)
        if known is not None and vars(self).keys() == {"handle", "shape", "numel", "type", "dtype"}:
            blocks[id(shape)] = self.shape, self.numel

    type_of_block.genuine, block.genuine = make_type, make_block
    core.block_type.__init__, core.tensor.__init__ = type_of_block, block


def accept_scalar_masks() -> None:
    """From now on, a mask can come from a condition of scalars, as in the compiler.

    In the interpreter the result of a comparison has the type of what was compared. Where a scalar result becomes a
    block, its truth values become numbers of that type. Triton 3.9 refuses these as a mask; older ones accept them.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    builder = getattr(interpreter, "InterpreterBuilder", None)
    genuine = getattr(builder, "create_splat", None)
    if genuine is None or hasattr(genuine, "genuine"):
        return

    def create_splat(self, ret_ty, arg):
        if arg.data.dtype == bool:
            arg = interpreter.TensorHandle(arg.data, tl.int1)
        return genuine(self, ret_ty, arg)

    create_splat.genuine = genuine
    builder.create_splat = create_splat


def keep_its_globals() -> None:
    """From now on, a launch no longer adds all globals of the interpreter to those of a kernel, but the one it needs.

    Among them are numpy, `inspect` and the functions that read and write at any address.
    """
    from triton.runtime import interpreter

    rewriter = getattr(interpreter, "FunctionRewriter", None)
    if not hasattr(rewriter, "_compile_and_exec") or not hasattr(interpreter, "interpreter_semantic"):
        return

    def compile_and_exec(self, tree):
        names = dict(self.kwargs)
        self.fn.__globals__["interpreter_semantic"] = interpreter.interpreter_semantic
        exec(compile(tree, self.filename, "exec"), self.fn.__globals__, names)
        return names[self.fn.__name__]

    rewriter._compile_and_exec = compile_and_exec


def check_handles(*handles) -> None:
    """Raise TypeError unless these are the interpreter's own blocks of numbers, or None: others could change."""
    from triton.runtime.interpreter import TensorHandle

    for each in handles:
        data = each.data if type(each) is TensorHandle else each
        if each is not None and type(data) is not np.ndarray:
            raise TypeError("a kernel's pointers, values and masks are made by Triton")


def stay_in_tensors() -> None:
    """From now on, a kernel reaches no memory but that of the tensors which its launch was given.

    Any integer can be a pointer, and this process holds more than tensors. `probes.Watch` has rules of its own: it
    takes the `genuine` functions of those in `ACCESSES`.
    """
    from triton.runtime import interpreter

    builder, function = (getattr(interpreter, name, None) for name in ("InterpreterBuilder", "InterpretedFunction"))
    known = hasattr(function, "run") and all(hasattr(builder, name) for name in ACCESSES)
    if not known or hasattr(getattr(builder, ACCESSES[0]), "genuine"):
        return
    open_launches: list[list[tuple[int, int]]] = []
    execute = function.run

    def run(kernel, *arguments, **options):
        open_launches.append(list(_memory_of([*arguments, *options.values()])))
        try:
            return execute(kernel, *arguments, **options)
        finally:
            open_launches.pop()

    def bounded(access, first: int, masked_by: int | None):
        def bounded_access(self, *arguments, **options):
            pointers = arguments[first]
            check_handles(*arguments[first : first + 3])
            addresses = np.atleast_1d(np.asarray(pointers.data)).astype(np.int64)
            if masked_by is not None:
                mask = arguments[masked_by]
                mask = np.asarray(mask if isinstance(mask, np.ndarray) else mask.data, dtype=bool)
                addresses = addresses[np.broadcast_to(mask, addresses.shape)]
            size = getattr(pointers.get_element_ty(), "primitive_bitwidth", 64) // 8
            inside = np.zeros(addresses.shape, dtype=bool)
            for low, high in open_launches[-1] if open_launches else ():
                inside |= (addresses >= low) & (addresses + size <= high)
            if not inside.all():
                raise IndexError("a kernel reaches the tensors that its launch is given, and this is outside of them")
            return access(self, *arguments, **options)

        bounded_access.genuine = access
        return bounded_access

    function.run = run
    # The places of the pointers and of the mask among the arguments.
    for name, first, masked_by in zip(ACCESSES, (0, 0, 1, 0), (1, 2, 3, None)):
        setattr(builder, name, bounded(getattr(builder, name), first, masked_by))


def _memory_of(values):
    """(first byte, end) of the memory of tensors, also in tuples and descriptors."""
    for each in values:
        if isinstance(each, torch.Tensor):
            with torch._C.DisableTorchFunction():
                storage = each.untyped_storage()
            yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        elif isinstance(each, (tuple, list)):
            yield from _memory_of(each)
        elif isinstance(base := getattr(each, "base", None), torch.Tensor):
            yield from _memory_of([base])


def _remembering(make_table, scalar: type):
    """Numpy's type of one of Triton's; those of scalars, which have a name each, are looked up once."""
    known = {}

    def np_dtype(tt_dtype):
        if type(tt_dtype) is not scalar:  # a block or a pointer
            return make_table(tt_dtype)
        found = known.get(tt_dtype.name)
        if found is None:
            found = known[tt_dtype.name] = make_table(tt_dtype)
        return found

    np_dtype.make_table = make_table
    return np_dtype
