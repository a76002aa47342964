"""Triton's interpreter for answers.

It is up to twice as fast, because it prepares `triton.language` and looks up types once and not at every call, and
computes nothing for assertions that it does not make. It also takes masks of scalar conditions.
"""

from __future__ import annotations

import dataclasses


def prepare_once() -> None:
    """Prepare the language once per launch, and not again at each call of a device function.

    A launch replaces every function of `triton.language` by one that computes, and puts the originals back when it
    ends. Each call of a device function in between goes through all of them once more, and finds nothing to replace;
    in kernels of small tiles that takes as long as all the rest. An operation that asks for numpy's name of a type
    builds the table of all of them first, a tenth of the rest. A sum, a difference or a product of integers is computed
    again in 64 bits and compared with the limits of its type, nearly a third of a walk over tiles; but the assertion
    that it is within them is made in debug mode only. So are those of a learner's `tl.device_assert`: debug mode is
    turned on, and that computation off. Nothing is changed if Triton's insides are not as expected.
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

    def patch_lang(fn):
        languages = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        if languages and not any(tl.core.is_builtin(language.load) for language in languages):
            return nothing()
        return genuine(fn)

    patch_lang.genuine = genuine
    interpreter._patch_lang = patch_lang
    if (make_table := getattr(interpreter, "_get_np_dtype", None)) is not None:
        interpreter._get_np_dtype = _remembering(make_table, tl.dtype)


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
