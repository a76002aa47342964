import pytest
import torch

from course_kernels.testing import data as t

FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, *FP8]
ALL = [*FLOATS, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


# ---- cases


def test_reference_problems_are_the_four_squares():
    assert [p.M for p in t.reference_problems()] == [1024, 512, 256, 128]
    assert t.reference_problems(8) == [t.Problem(n, n, n) for n in (128, 64, 32, 16)]
    for scale in (0, 3, 256):
        with pytest.raises(ValueError, match=f"scale must be a divisor of 128, got {scale}"):
            t.reference_problems(scale)


def test_ragged_and_empty_problems_are_what_they_say():
    ragged = t.ragged_problems()
    assert all(min(p) > 0 for p in ragged)
    for axis in range(3):
        assert any(p[axis] % 16 for p in ragged)
        assert any(p[axis] == 0 for p in t.empty_problems())
    assert any(p.K == 0 and p.M * p.N for p in t.empty_problems())
    assert any(min(p) > 0 for p in t.empty_problems())  # an ordinary one among them


@pytest.mark.parametrize("tokens", [0, 1, 4096])
@pytest.mark.parametrize("router", t.ROUTERS)
def test_routers_send_every_token_once_and_repeat_themselves(router, tokens):
    sizes = t.routed_sizes(router, tokens, seed=3)
    assert len(sizes) == 8
    assert sum(sizes) == tokens
    assert sizes == t.routed_sizes(router, tokens, seed=3)
    ids = t.route(router, tokens, seed=3)
    assert sizes == [int((ids == g).sum()) for g in range(8)]


def test_routers_have_their_skew():
    uniform = t.routed_sizes("uniform", 8000)
    zipf = t.routed_sizes("zipf", 8000, s=1.0)
    assert max(uniform) < 1.15 * 1000
    assert min(uniform) > 0.85 * 1000
    harmonic = sum(1 / (g + 1) for g in range(8))
    for g, m in enumerate(zipf):  # within five standard deviations of the weight it was drawn with
        share = 1 / (g + 1) / harmonic
        assert abs(m - 8000 * share) < 5 * (8000 * share * (1 - share)) ** 0.5
    assert t.routed_sizes("zipf", 500, s=0.0, seed=1) == t.routed_sizes("uniform", 500, seed=1)
    assert t.routed_sizes("one_hot", 50, hot=5) == [0, 0, 0, 0, 0, 50, 0, 0]
    assert t.routed_sizes("uniform", 500, seed=1) != t.routed_sizes("uniform", 500, seed=2)


def test_routers_draw_the_same_on_every_machine():
    assert t.routed_sizes("zipf", 1000, s=1.2) == [435, 177, 123, 90, 49, 52, 40, 34]


def test_routers_refuse_nonsense():
    for arguments, text in (
        (("random", 4), "router must be one of uniform, zipf, one_hot, got 'random'"),
        (("uniform", -1), "tokens must not be negative, got -1"),
        (("uniform", 4, 0), "experts must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=text):
            t.route(*arguments)
    with pytest.raises(ValueError, match="hot must be from 0 to 7, got 8"):
        t.route("one_hot", 4, hot=8)


# ---- data


@pytest.mark.parametrize("dtype", ALL)
def test_integers_are_whole_small_and_the_same_in_every_dtype(dtype):
    low = 0 if dtype == torch.uint8 else -2
    values = t.integers((40, 5), dtype, 7, low=low)
    assert values.dtype == dtype
    assert torch.equal(values.to(torch.float64), t.integers((40, 5), torch.float64, 7, low=low))
    assert set(values.to(torch.float64).flatten().tolist()) == set(range(low, 3))


def test_integers_advance_a_generator_and_restart_from_a_seed():
    generator = torch.Generator().manual_seed(5)
    first, second = t.integers((9, 9), generator=generator), t.integers((9, 9), generator=generator)
    assert torch.equal(first, t.integers((9, 9), generator=5))
    assert not torch.equal(first, second)


def test_integers_refuse_what_the_dtype_cannot_hold():
    with pytest.raises(ValueError, match="float8_e4m3fn cannot hold every whole number from 0 to 17"):
        t.integers((2,), torch.float8_e4m3fn, low=0, high=17)
    with pytest.raises(ValueError, match="low must not be above high, got 3 and 2"):
        t.integers((2,), low=3)


def test_make_operands_has_the_extents_and_no_two_matrices_alike():
    problems = [t.Problem(8, 9, 10), t.Problem(8, 9, 10), t.Problem(0, 3, 4)]
    group_A, group_B = t.make_operands(problems, torch.bfloat16, strides="col")
    assert [a.shape for a in group_A] == [(8, 10), (8, 10), (0, 4)]
    assert [b.shape for b in group_B] == [(10, 9), (10, 9), (4, 3)]
    assert not torch.equal(group_A[0], group_A[1])
    assert group_A[0].stride() == (1, 8)
