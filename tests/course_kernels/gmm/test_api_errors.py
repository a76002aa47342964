"""Bad arguments of gmm, ptgmm and nptgmm: the error names the argument, and nothing has been written."""

from __future__ import annotations

import pytest
import torch

from course_kernels import GemmConfig, gmm, runtime, shuffle_weight
from gmm_cases import RAGGED, SMALL, TRANSPOSED, integers, sizes_of

M, K, N, G = sum(RAGGED), 8, 6, len(RAGGED)
FP8 = torch.float8_e4m3fn


def at(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype, device=runtime.device())


def meta(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype, device="meta")


def config(**changes):
    return dict(BLOCK_SIZE_M=16, BLOCK_SIZE_K=16, BLOCK_SIZE_N=16, GROUP_SIZE=1) | changes


# What every function refuses: changed arguments, the error, its message.
OF_ALL = [
    (dict(lhs=None), TypeError, "lhs must be a torch.Tensor, got NoneType"),
    (dict(rhs=[1]), TypeError, "rhs must be a torch.Tensor, got list"),
    (dict(group_sizes=RAGGED), TypeError, "group_sizes must be a torch.Tensor, got tuple"),
    (dict(lhs=at(M)), ValueError, r"lhs must be 2-D, got shape \(38,\)"),
    (dict(lhs=at(2, M, K)), ValueError, r"lhs must be 2-D, got shape \(2, 38, 8\)"),
    (dict(lhs=at(M, K).to_sparse()), TypeError, "lhs must be a dense"),
    (dict(rhs=at(4)), ValueError, r"rhs must be [23]-D, got shape \(4,\)"),
    (dict(group_sizes=sizes_of(*RAGGED)[:, None]), ValueError, r"group_sizes must be 1-D, got shape \(4, 1\)"),
    (dict(group_sizes=at(G, dtype=torch.int16)), TypeError, "group_sizes must be torch.int32 or .* got torch.int16"),
    (dict(group_sizes=at(G, dtype=torch.float32)), TypeError, "group_sizes must be torch.int32"),
    (dict(group_sizes=meta(G, dtype=torch.int32)), ValueError, "group_sizes must be on the device of lhs"),
    (dict(lhs=at(M, K, dtype=torch.int32)), TypeError, "lhs must have a dtype of"),
    (dict(lhs=at(M, K).to(FP8)), TypeError, "lhs must have a dtype of .* got torch.float8_e4m3fn"),
    (dict(lhs=at(M, K, dtype=torch.float16)), TypeError, "rhs must have the dtype of lhs, torch.float16"),
    (dict(preferred_element_type=torch.int8), TypeError, "preferred_element_type must be one of .* got torch.int8"),
    (dict(preferred_element_type="bf16"), TypeError, "preferred_element_type must be one of .* got 'bf16'"),
    (dict(backend="hip"), ValueError, "backend must be one of .* got 'hip'"),
    (dict(config=config(BLOCK_SIZE_M=48)), ValueError, r"config\['BLOCK_SIZE_M'\] must be a power of two .* got 48"),
    (dict(config={"BLOCK_SIZE_M": 64}), ValueError, "missing: BLOCK_SIZE_K, BLOCK_SIZE_N, GROUP_SIZE"),
    (dict(config={"BLOCK_M": 64}), ValueError, "missing: .*, GROUP_SIZE, and it has BLOCK_M, which is no key$"),
    (dict(config=config(waves=2)), ValueError, "must have keys among .* got waves"),
    (dict(config=config(GROUP_SIZE=0)), ValueError, r"config\['GROUP_SIZE'\] must be a positive integer, got 0"),
    (dict(config=config(num_warps=3)), ValueError, r"config\['num_warps'\] must be one of"),
    (dict(config=config(BLOCK_SIZE_K=16.0)), ValueError, r"config\['BLOCK_SIZE_K'\] must be .* got 16.0"),
    (dict(config=config(GROUP_SIZE=[1])), ValueError, r"config\['GROUP_SIZE'\] must be a positive integer, got \[1\]"),
    (dict(config="fast"), ValueError, "config must be the path of a JSON file, got 'fast'"),
    (dict(config=3), TypeError, "config must be a dict with AITER's keys, the path of AITER's tuning file or a Gemm"),
    (dict(config=GemmConfig(schedule="chunks"), backend="triton"), ValueError, "config does not suit .*'chunks'"),
    (dict(check=True, group_sizes=sizes_of(17, 0, 16, 4)), ValueError, "group_sizes must sum to 38, .*, got 37"),
    (dict(check=True, group_sizes=sizes_of(17, 0, 16, 6)), ValueError, "group_sizes must sum to 38, .*, got 39"),
    (dict(check=True, group_sizes=sizes_of(17, -1, 17, 5)), ValueError, r"group_sizes\[1\] = -1"),
]  # fmt: skip
OF_GMM = [
    (dict(rhs=at(G, N)), ValueError, r"rhs must be 3-D, got shape \(4, 6\)"),
    (dict(rhs=at(G, 5, 7)), ValueError, r"rhs must have shape \(G, K, N\) or \(G, N, K\) with K = 8, .* \(4, 5, 7\)"),
    (dict(rhs_layout="gnk"), ValueError, r"rhs must have shape \(G, N, K\) with K = 8"),
    (dict(rhs=at(G, N, K), rhs_layout="gkn"), ValueError, r"rhs must have shape \(G, K, N\) with K = 8"),
    (dict(rhs_layout="row"), ValueError, "rhs_layout must be one of .* got 'row'"),
    (dict(rhs=meta(G, K, N)), ValueError, "rhs must be on the device of lhs, .* got meta"),
    (dict(group_sizes=sizes_of(17, 16, 5)), ValueError, "group_sizes must have one size .* 4 groups of rhs, got 3"),
    (dict(bias=at(G, K)), ValueError, r"bias must have shape \(G, N\) = \(4, 6\), got \(4, 8\)"),
    (dict(bias=at(N)), ValueError, r"bias must have shape"),
    (dict(bias=at(G, N, dtype=torch.float16)), TypeError, "bias must have the dtype of lhs, torch.bfloat16, or "),
    (dict(bias=meta(G, N)), ValueError, "bias must be on the device of lhs"),
    (dict(bias=1.0), TypeError, "bias must be a torch.Tensor, got float"),
    (dict(existing_out=at(M, K)), ValueError, r"existing_out must have shape \(38, 6\), got \(38, 8\)"),
    (dict(existing_out=at(M, N, dtype=torch.float16)), TypeError, "existing_out must have dtype torch.bfloat16"),
    (dict(existing_out=meta(M, N)), ValueError, "existing_out must be on the device of lhs"),
    (dict(existing_out=at(1, N).expand(M, N)), ValueError, "existing_out has elements that share memory"),
    (dict(existing_out=at(M, N).requires_grad_()), ValueError, "existing_out requires a gradient"),
    (dict(work_stealing="yes"), TypeError, "work_stealing must be True or False, got 'yes'"),
    (dict(grid_dim=0), ValueError, "grid_dim must be a positive integer .* got 0"),
    (dict(grid_dim=-3), ValueError, "grid_dim must be .* got -3"),
    (dict(grid_dim=True), ValueError, "grid_dim must be .* got True"),
    (dict(grid_dim=1.5), ValueError, "grid_dim must be .* got 1.5"),
    (dict(config=config(GRID_DIM=0)), ValueError, r"config\['GRID_DIM'\] must be"),
]  # fmt: skip
OF_TGMM = [
    (dict(rhs=at(2, M, N)), ValueError, r"rhs must be 2-D, got shape \(2, 38, 6\)"),
    (dict(lhs=at(K, M + 1)), ValueError, r"lhs must have shape \(K, M\) or \(M, K\) with M = 38, .* got \(8, 39\)"),
    (dict(lhs_layout="mk"), ValueError, r"lhs must have shape \(M, K\) with M = 38"),
    (dict(lhs=at(M, K), lhs_layout="km"), ValueError, r"lhs must have shape \(K, M\) with M = 38"),
    (dict(lhs_layout="column"), ValueError, "lhs_layout must be one of .* got 'column'"),
    (dict(rhs=meta(M, N)), ValueError, "rhs must be on the device of lhs"),
    (dict(existing_out=at(G, N, K)), ValueError, r"existing_out must have shape \(4, 8, 6\), got \(4, 6, 8\)"),
    (dict(existing_out=at(G, K, N, dtype=torch.float32)), TypeError, "existing_out must have dtype torch.bfloat16"),
    (dict(existing_out=at(1, K, N).expand(G, K, N)), ValueError, "existing_out has elements that share memory"),
    (dict(accumulate=True, existing_out=None), ValueError, "existing_out must be given with accumulate=True, got None"),
    (dict(bias_grad=at(G, N, dtype=torch.float32)), ValueError, r"bias_grad must have shape \(4, 8\), got \(4, 6\)"),
    (dict(bias_grad=at(G, K)), TypeError, "bias_grad must have dtype torch.float32, got torch.bfloat16"),
    (dict(bias_grad=meta(G, K, dtype=torch.float32)), ValueError, "bias_grad must be on the device of lhs"),
    (dict(bias_grad=at(1, K, dtype=torch.float32).expand(G, K)), ValueError, "bias_grad has elements that share"),
    (dict(bias_grad=at(G, K, dtype=torch.float32).requires_grad_()), ValueError, "bias_grad requires a gradient"),
    (dict(bias_grad=[0]), TypeError, "bias_grad must be a torch.Tensor, got list"),
]  # fmt: skip


def refused(function, arguments, changes, error, message):
    """Call with changed arguments; the results that were given are as they were."""
    arguments = arguments | changes
    outputs = [arguments[name] for name in ("existing_out", "bias_grad") if arguments.get(name) is not None]
    outputs = [out for out in outputs if isinstance(out, torch.Tensor) and not out.is_meta]
    before = [out.detach().clone() for out in outputs]
    with pytest.raises(error, match=message) as caught:
        function(**arguments)
    for name in ("mat_a", "mat_b", "offs"):
        assert name not in str(caught.value)
    assert all(torch.equal(out.detach(), was) for out, was in zip(outputs, before))


@pytest.mark.parametrize(("changes", "error", "message"), [*OF_ALL, *OF_GMM], ids=lambda value: str(value)[:60])
def test_gmm_refuses(changes, error, message):
    given = dict(lhs=integers(M, K), rhs=integers(G, K, N), group_sizes=sizes_of(*RAGGED))
    refused(gmm, given | dict(existing_out=at(M, N) + 7), changes, error, message)


@pytest.mark.parametrize(("changes", "error", "message"), [*OF_ALL, *OF_TGMM], ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_tgmm_refuses(name, changes, error, message):
    outputs = dict(existing_out=at(G, K, N) + 7, bias_grad=at(G, K, dtype=torch.float32) + 7)
    given = dict(lhs=integers(K, M), rhs=integers(M, N), group_sizes=sizes_of(*RAGGED))
    refused(TRANSPOSED[name], given | outputs, changes, error, message)


def test_what_one_transposed_function_alone_takes():
    lhs, rhs, sizes = integers(K, M), integers(M, N), sizes_of(*RAGGED)
    for grid_dim in (0, -1, "4"):
        with pytest.raises(ValueError, match="grid_dim must be a positive integer"):
            TRANSPOSED["ptgmm"](lhs, rhs, sizes, grid_dim=grid_dim)
    with pytest.raises(TypeError, match="grid_dim"):
        TRANSPOSED["nptgmm"](lhs, rhs, sizes, grid_dim=4)
    with pytest.raises(ValueError, match=r"config of nptgmm must have keys among .* got GRID_DIM"):
        TRANSPOSED["nptgmm"](lhs, rhs, sizes, config=config(GRID_DIM=4))
    with pytest.raises(ValueError, match="config of nptgmm must not name programs, got 4"):
        TRANSPOSED["nptgmm"](lhs, rhs, sizes, config=GemmConfig(programs=4))


def test_shuffled_weights_are_named():
    lhs, weight = (torch.ones(shape, device=runtime.device()).half() for shape in ((4, 32), (2, 32, 32)))
    with pytest.raises(TypeError, match="rhs must be a plain tensor, got a shuffled weight: unshuffle_weight first"):
        gmm(lhs, shuffle_weight(weight), sizes_of(1, 3))


def test_sizes_whose_sum_wraps_are_found():
    sizes = torch.tensor([2**62] * 4 + [M], device=runtime.device())
    with pytest.raises(ValueError, match=f"group_sizes must sum to {M}, .* got {2**64 + M}"):
        gmm(integers(M, K), integers(5, K, N), sizes, check=True)


def test_outputs_may_not_overlap_anything():
    memory = at(M, K + N)
    lhs, out = memory[:, :K], memory[:, K - 1 : K - 1 + N]
    with pytest.raises(ValueError, match="existing_out shares memory with lhs"):
        gmm(lhs, integers(G, K, N), sizes_of(*RAGGED), existing_out=out)
    gmm(lhs, integers(G, K, N), sizes_of(*RAGGED), existing_out=memory[:, K:])  # interlocked, but apart
    memory = torch.zeros(M * N, device=runtime.device())
    sizes = memory.view(torch.int32)[:G].copy_(sizes_of(*RAGGED))
    with pytest.raises(ValueError, match="existing_out shares memory with group_sizes"):
        gmm(lhs, integers(G, K, N), sizes, None, torch.float32, existing_out=memory.view(M, N))
    assert sizes.tolist() == list(RAGGED)
    lhs, rhs, sizes = integers(K, M), integers(M, N), sizes_of(*RAGGED)
    memory = at(G * K * N, dtype=torch.float32)
    together = dict(bias_grad=memory[: G * K].view(G, K), existing_out=memory.view(G, K, N))
    for function in TRANSPOSED.values():
        with pytest.raises(ValueError, match="bias_grad shares memory with existing_out"):
            function(lhs, rhs, sizes, preferred_element_type=torch.float32, **together)
        wide = at(K, M, dtype=torch.float32)
        with pytest.raises(ValueError, match="bias_grad shares memory with lhs"):
            function(wide, rhs.float(), sizes, wide.view(-1)[: G * K].view(G, K))
    with pytest.raises(ValueError, match="existing_out is a lazily negated view"):
        gmm(lhs.mT, integers(G, K, N), sizes, existing_out=torch._neg_view(at(M, N)))


def test_a_given_result_has_no_gradient():
    lhs, rhs = integers(M, K).requires_grad_(), integers(G, K, N)
    with pytest.raises(ValueError, match="existing_out must be None where an operand requires a gradient"):
        gmm(lhs, rhs, sizes_of(*RAGGED), existing_out=at(M, N))
    for function in TRANSPOSED.values():
        with pytest.raises(ValueError, match="existing_out must be None where an operand requires a gradient"):
            function(lhs, integers(M, N), sizes_of(*RAGGED), existing_out=at(G, K, N), lhs_layout="mk")
    with torch.no_grad():
        gmm(lhs, rhs, sizes_of(*RAGGED), existing_out=at(M, N))


def test_dual_tensors_are_refused_by_the_functions_name():
    lhs, rhs = integers(M, K, dtype=torch.float32), integers(G, K, N, dtype=torch.float32)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(lhs, lhs.clone())
        with pytest.raises(RuntimeError, match=r"^gmm has no forward-mode derivative"):
            gmm(dual, rhs, sizes_of(*RAGGED))
        for name, function in TRANSPOSED.items():
            with pytest.raises(RuntimeError, match=rf"^{name} has no forward-mode derivative"):
                function(dual, integers(M, N, dtype=torch.float32), sizes_of(*RAGGED), lhs_layout="mk")


def test_wrong_sizes_write_nowhere_else():
    """Without check, sizes that do not fit give an unspecified result, but only in the result."""
    for wrong in ((100, 0, 0, 0), (-5, 20, 3, 1), (2**31 - 1, 2**31 - 1, 1, 1)):
        memory = torch.full((M + 4, N), 7.0, dtype=torch.bfloat16, device=runtime.device())
        sizes = sizes_of(*wrong)
        gmm(integers(M, K), integers(G, K, N), sizes, existing_out=memory[2:-2], config=SMALL, backend="triton")
        assert (memory[:2] == 7).all()
        assert (memory[-2:] == 7).all()
