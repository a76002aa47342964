"""What is wrong with a compiled kernel, read off its TTIR: addresses of 32 bits, products of matrices that are chained.

An extent is below 2**31, so an index along one may have 32 bits. Its product with a stride may not, and neither may the
product of an index with an extent: these pass 2**31 in matrices that fit into a GPU's memory.
"""

from __future__ import annotations

import re

_DEFINITION = re.compile(r"^\s*%(?P<name>[\w.]+)(?::\d+)? = (?P<op>[\w.]+) (?P<rest>.*?)(?: loc\(.*)?$")
_VALUE = re.compile(r"%[\w.]+")
# What hands a number, or a sum of numbers, on.
_HANDING_ON = {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "arith.addi", "arith.subi", "arith.select"}


def narrow_offsets(ttir: str) -> list[str]:
    """The lines that multiply 32-bit numbers into an address: one of them a stride (an argument whose name begins with
    ``stride``), or both known at run time alone and the product added to a pointer without a division in between."""
    definitions = {}
    for line in ttir.splitlines():
        if found := _DEFINITION.match(line):
            definitions["%" + found["name"]] = found["op"], found["rest"]

    def inputs(name: str) -> list[str]:
        return _VALUE.findall(definitions[name][1]) if name in definitions else []

    def is_narrow(name: str) -> bool:
        return bool(re.search(r": (tensor<[\dx]+x)?i32>?$", definitions[name][1]))

    def is_constant(name: str) -> bool:
        op = definitions.get(name, ("", ""))[0]
        return op == "arith.constant" or (op in ("tt.splat", "tt.broadcast") and all(map(is_constant, inputs(name))))

    def is_stride(name: str) -> bool:
        if name not in definitions:
            return name.startswith("%stride")
        return definitions[name][0] in _HANDING_ON and any(map(is_stride, inputs(name)))

    products = [name for name, (op, _) in definitions.items() if op == "arith.muli" and is_narrow(name)]
    wrong = {name for name in products if any(map(is_stride, inputs(name)))}
    # Backwards from what is added to pointers.
    ahead = [inputs(name)[1] for name, (op, _) in definitions.items() if op == "tt.addptr"]
    seen = set()
    while ahead:
        name = ahead.pop()
        if name in seen or name not in definitions:
            continue
        seen.add(name)
        op = definitions[name][0]
        if op in _HANDING_ON or op == "arith.extsi":
            ahead += inputs(name)
        elif name in products:
            if not any(map(is_constant, inputs(name))):
                wrong.add(name)
            ahead += inputs(name)
    return [f"{name} = {' '.join(definitions[name])}" for name in sorted(wrong)]


def chained_products(ttir: str) -> list[str]:
    """The lines that add a product of matrices to the sum that another one in the same block of code has made.

    Triton 3.6 to 3.8 compile two such products in a loop wrongly for tcgen05 (its issue 10821): one of them is lost.
    """
    found, results = [], [set()]
    for line in ttir.splitlines():
        match = _DEFINITION.match(line)
        if match and match["op"].startswith("tt.dot"):
            if results[-1] & set(_VALUE.findall(match["rest"].partition(" : ")[0])[2:]):
                found.append(line.strip())
            results[-1].add("%" + match["name"])
        depth = line.partition(" loc(")[0]
        for bracket in depth:
            if bracket == "{":
                results.append(set())
            elif bracket == "}":
                results.pop()
    return found
