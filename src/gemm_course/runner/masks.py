"""Finds wrong masks of an answer's loads and stores in its source, and comparisons without brackets anywhere."""

from __future__ import annotations

import ast

_MOST = 50  # accesses that are examined
_PLACES = {"load": 1, "store": 2}  # of the mask among the arguments
_WORDS = {ast.And: "and", ast.Or: "or"}
# Functions whose result has the shape of their arguments, broadcast.
_ELEMENTWISE = {"abs", "max_contiguous", "maximum", "minimum", "multiple_of", "where"}
_SUMS = ("dot", "sum")
_TURNING = {"T", "permute", "reshape", "trans", "view"}
_SCALARS = {"cdiv", "int", "len", "max", "min", "num_programs", "program_id"}


def problems(source: str) -> list[dict]:
    """The wrong masks, as `judging.causes.MaskProblem` has them.

    A mask is wrong if it combines others by `and`, `or` or `|`, has too few dimensions, or compares along a dimension
    what the pointers do not have there (that alone explains an access outside, and is no mistake without one). What is
    wrong wherever it
    stands in a kernel comes first: comparisons whose brackets are missing (`&` binds tighter than `<`), an index into
    a pointer, a loop's step by the program's own number, and a sum that nothing takes.
    """
    try:
        tree = ast.parse(source)
        reader = _Reader(tree)
        kernels = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_kernel(node)]
        inside = [(kernel, node) for kernel in kernels for node in ast.walk(kernel)]
        leading = [_without_brackets(node) for _, node in inside if reader.lacks_brackets(node)]
        leading += [found for each in inside if (found := _wrong_anywhere(*each))]
        return leading[:_MOST] + [
            {"first": call.lineno, "last": call.end_lineno or call.lineno, **problem}
            for call in reader.calls[:_MOST]
            if (problem := reader.mask_problem(call))
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def loads_without_other(source: str) -> list[range]:
    """The lines of each load that has a mask and no value for what the mask leaves out."""
    try:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and _called(node) == "load"]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    masked = (each for each in calls if len(each.args) == 2 or any(key.arg == "mask" for key in each.keywords))
    return [
        range(each.lineno, (each.end_lineno or each.lineno) + 1)
        for each in masked
        if len(each.args) < 3 and not any(key.arg in ("other", None) for key in each.keywords)
    ]


class _Reader:
    """The loads and stores of a source, and how many dimensions its names have."""

    def __init__(self, tree: ast.Module):
        nodes = sorted((node for node in ast.walk(tree) if hasattr(node, "lineno")), key=lambda node: node.lineno)
        self.calls = [node for node in nodes if isinstance(node, ast.Call) and _called(node) in _PLACES]
        self._values: dict[str, list[ast.expr]] = {}
        self._ranks: dict[str, int | None] = {}
        for node in nodes:
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._assign(target, node.value, isinstance(node, ast.AugAssign))

    def _assign(self, target: ast.expr, value: ast.expr, augmented: bool) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for each, part in zip(target.elts, value.elts):
                self._assign(each, part, augmented)
        elif isinstance(target, ast.Name):
            rank = self._rank(value)
            self._ranks[target.id] = _highest([rank, self._ranks.get(target.id, 0)]) if augmented else rank
            self._values.setdefault(target.id, []).append(value)
        else:
            self._ranks.update((each.id, None) for each in ast.walk(target) if isinstance(each, ast.Name))

    def mask_problem(self, call: ast.Call) -> dict | None:
        """The wrong part of an access's mask: its line and kind; None if none shows."""
        mask = next((each.value for each in call.keywords if each.arg == "mask"), None)
        if mask is None and len(call.args) > _PLACES[_called(call)]:
            mask = call.args[_PLACES[_called(call)]]
        if mask is None or not call.args:
            return None
        parts = self._parts(mask)
        for part in parts:
            if isinstance(part, ast.BoolOp):
                return {"line": part.lineno, "kind": _WORDS[type(part.op)]}
        either = next((each for each in parts if isinstance(getattr(each, "op", None), ast.BitOr)), None)
        if either is not None and not any(isinstance(getattr(each, "op", None), ast.Invert) for each in parts):
            return {"line": either.lineno, "kind": "either"}
        if self._rank(call.args[0]) != 2:
            return None
        if self._rank(mask) == 1:
            return {"line": mask.lineno, "kind": "flat"}
        given = self._parts(mask, indexed=False)
        flat = next((each for each in given if isinstance(each, ast.Compare) and self._rank(each) == 1), None)
        if flat is not None:
            return {"line": flat.lineno, "kind": "flat part", "code": ast.unparse(flat), "side": "rows"}
        return self._other_indices(call.args[0], mask)

    def _other_indices(self, pointers: ast.expr, mask: ast.expr) -> dict | None:
        """The part of a mask with other indices than the pointers have along its dimension."""
        masked, pointed = self._along(mask), self._along(pointers)
        indices = [{axis: self._ranges(parts) for axis, parts in each.items()} for each in (masked, pointed)]
        apart = [axis for axis in masked if axis in pointed and all(each[axis] for each in indices)]
        apart = [axis for axis in apart if not indices[0][axis] & indices[1][axis]]
        if not apart:
            return None
        turned = len(apart) == 2 and indices[0] == {axis: indices[1][1 - axis] for axis in apart}
        code, other = masked[apart[0]][0], pointed[apart[0]][0]
        return {
            "line": code.lineno, "kind": "turned" if turned else "foreign", "code": ast.unparse(code),
            "other": ast.unparse(other),
        }  # fmt: skip

    def _along(self, node: ast.expr) -> dict[int, list[ast.Subscript]]:
        """The parts with [:, None], by 0, and with [None, :], by 1; empty if something may turn them."""
        found: dict[int, list[ast.Subscript]] = {}
        for part in self._parts(node):
            if getattr(part, "attr", None) in _TURNING or (isinstance(part, ast.Call) and _called(part) in _TURNING):
                return {}
            if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Tuple) and len(part.slice.elts) == 2:
                whole = [isinstance(each, ast.Slice) for each in part.slice.elts]
                if sum(whole) == 1:
                    found.setdefault(whole.index(True), []).append(part)
        return found

    def _ranges(self, parts: list[ast.Subscript]) -> set[str]:
        """The names behind some parts that are ranges of indices."""
        names = {each.id for part in parts for each in self._parts(part) if isinstance(each, ast.Name)}
        return {
            name
            for name in names
            if any(isinstance(node, ast.Call) and _called(node) == "arange"
                   for value in self._values.get(name, ()) for node in ast.walk(value))
        }  # fmt: skip

    def lacks_brackets(self, node: ast.AST) -> bool:
        """True for a comparison of what `&` or `|` makes of a comparison, or of the side of another one.

        `a < M & b < N` compares a with `M & b`, and that with N; `(a < M) & b < N` compares truth values with N.
        Tests of bits, `x & 1 == 0` and `0 < x & 7 < n`, are none.
        """
        if not isinstance(node, ast.Compare):
            return False
        both = [each for each in (node.left, *node.comparators) if _combines(each) and not _takes_bits(each)]
        return bool(both) and (
            len(node.ops) > 1 or any(self._is_condition(side) for each in both for side in (each.left, each.right))
        )

    def _is_condition(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            values = self._values.get(node.id, ())
            return bool(values) and all(isinstance(each, ast.Compare) for each in values)
        return isinstance(node, ast.Compare) or (
            _combines(node) and (self._is_condition(node.left) or self._is_condition(node.right))
        )

    def _parts(self, mask: ast.expr, indexed: bool = True) -> list[ast.AST]:
        """All parts of a mask, and of what was assigned to its names; `indexed`: also inside of `part[:, None]`."""
        found, names, pending = [], set(), [mask]
        while pending:
            node = pending.pop(0)
            found.append(node)
            if isinstance(node, ast.Name) and node.id not in names:
                names.add(node.id)
                pending.extend(self._values.get(node.id, ()))
            if indexed or not isinstance(node, ast.Subscript):
                pending.extend(ast.iter_child_nodes(node))
        return found

    def _rank(self, node: ast.expr) -> int | None:
        """The number of dimensions of a value; None if the source does not show it."""
        if isinstance(node, ast.Name):
            return self._ranks.get(node.id, 0)
        if isinstance(node, ast.Subscript):
            return len(node.slice.elts) if isinstance(node.slice, ast.Tuple) else None
        if isinstance(node, ast.Compare):
            return _highest([self._rank(node.left), *map(self._rank, node.comparators)])
        if isinstance(node, ast.BinOp):
            return _highest([self._rank(node.left), self._rank(node.right)])
        if isinstance(node, ast.UnaryOp):
            return self._rank(node.operand)
        if isinstance(node, ast.Call):
            return self._rank_of_call(node)
        return 0 if isinstance(node, (ast.Constant, ast.Attribute)) else None

    def _rank_of_call(self, call: ast.Call) -> int | None:
        name = _called(call)
        if name == "arange":
            return 1
        if name in _SCALARS:
            return 0
        if name == "to" and isinstance(call.func, ast.Attribute):
            return self._rank(call.func.value)
        if name == "load" and call.args:
            return self._rank(call.args[0])
        return _highest([self._rank(each) for each in call.args]) if name in _ELEMENTWISE else None


def _combines(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr))


def _without_brackets(node: ast.Compare) -> dict:
    sign = next("&" if isinstance(each.op, ast.BitAnd) else "|" for each in ast.walk(node) if _combines(each))
    return _leading(node, "brackets", sign)


def _takes_bits(node: ast.BinOp) -> bool:
    return isinstance(node.left, ast.Constant) or isinstance(node.right, ast.Constant)


def _is_kernel(function: ast.FunctionDef) -> bool:
    """True for a function under @triton.jit, or a decorator that is called with arguments."""
    names = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    return any(getattr(each, "attr", getattr(each, "id", "")) == "jit" for each in names)


def _wrong_anywhere(kernel: ast.FunctionDef, node: ast.AST) -> dict | None:
    """The problem of `x_ptr[i]` with a parameter of a kernel, of `tile += tl.program_id(0)` as a loop's step, and of a
    sum that is a statement of its own."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _called(node.value) in _SUMS:
        return _leading(node, "dropped", ast.unparse(node.value))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id.endswith("_ptr"):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        given = node.value.id in {each.arg for each in kernel.args.args} - _assigned(kernel)
        if given and not any(isinstance(each, ast.Slice) for each in parts):
            return _leading(node, "index", ast.unparse(node.value))
    if isinstance(node, (ast.While, ast.For)):
        steps = [each for each in ast.walk(node) if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add)]
        for each in steps:
            target = ast.unparse(each.target)
            # A number that each turn begins anew is no step.
            if isinstance(each.value, ast.Call) and _called(each.value) == "program_id" and target not in _begun(node):
                return _leading(each, "step", target)
    return None


def _assigned(node: ast.AST) -> set[str]:
    """The names that are assigned in it."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _begun(loop: ast.While | ast.For) -> set[str]:
    """The names to which a turn of a loop gives another value than a sum with the old one."""
    plain = [each for each in ast.walk(loop) if isinstance(each, (ast.Assign, ast.AnnAssign, ast.For))]
    targets = [t for each in plain for t in (each.targets if isinstance(each, ast.Assign) else [each.target])]
    return set().union(*map(_assigned, targets))


def _leading(node: ast.stmt | ast.expr, kind: str, code: str) -> dict:
    last = node.end_lineno or node.lineno
    return {"first": node.lineno, "last": last, "line": node.lineno, "kind": kind, "code": code}


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _highest(ranks: list[int | None]) -> int | None:
    return None if None in ranks else max(ranks)
