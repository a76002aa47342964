"""Exercise 12b, the shuffle and its inverse: the tests of any exercise, and the shuffle as AITER defines it."""

from __future__ import annotations

import json

import torch

from exercise_checks import *  # noqa: F403 (the tests of any exercise)
from exercise_diagnoses import test_no_mutant_passes_by_luck  # noqa: F401 (stricter than the one above)
from gemm_course.exercises import manifest
from places import ROOT


def test_the_shuffle_puts_every_element_where_aiter_does(exercise):
    for dtype in (torch.int16, torch.int8):
        weight = torch.randint(-99, 99, (3, 48, 96), dtype=dtype, generator=torch.Generator().manual_seed(1))
        pack = 16 // weight.element_size()
        got = manifest.examiner(exercise).shuffled(weight).flatten()
        for g, n, k in ((0, 0, 0), (0, 5, 3), (1, 17, 33), (2, 47, 95), (1, 31, 64 + pack)):
            block = (g * 3 + n // 16) * 3 + k // 32
            place = block * 512 + k % 32 // pack * 16 * pack + n % 16 * pack + k % pack
            assert got[place] == weight[g, n, k]


def test_the_notebook_shuffles_as_the_check_does(exercise):
    cells = json.loads((ROOT / "exercises" / f"{exercise.name}.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = (text for cell in cells if (text := "".join(cell["source"])).startswith("def shuffle("))
    names = {}
    exec(source, names)  # our own notebook's
    for shape, dtype in (((32, 64), torch.float16), ((2, 48, 32), torch.float8_e4m3fn)):
        weight = torch.arange(torch.Size(shape).numel()).remainder(15).float().to(dtype).view(shape)
        assert torch.equal(names["shuffle"](weight).float(), manifest.examiner(exercise).shuffled(weight).float())
