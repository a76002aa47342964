"""Gradients that are added to a float32 tensor instead of being returned: Megatron's ``main_grad``."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import forked
from course_kernels import grouped_mm, runtime
from course_kernels.packed import torch_ops
from course_kernels.testing import integers, poisoned, reference, strided_like
from packed_operands import DEVICE, operands

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

BACKENDS = ("torch", "triton")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def layer(dtype=torch.float32, transposed=True):
    """x, a weight (G, N, K) or (G, K, N), mat_b of it, a bias, offs, and main_grad of the weight's shape."""
    x, b, offs, bias = operands("m", dtype, grad=True, bias=True)
    weight = (b.detach().mT.contiguous() if transposed else b.detach()).requires_grad_()
    return x, weight, bias, offs, torch.ones(weight.shape, device=DEVICE)


def run(x, weight, bias, offs, main_grad, transposed=True, **options):
    view = (lambda t: t.mT) if transposed else (lambda t: t)
    return grouped_mm(x, view(weight), bias=bias, offs=offs, main_grad=view(main_grad), **options)


def exact_gradient(x, weight, offs, grad, transposed=True):
    copy = weight.detach().double().requires_grad_()
    product = reference.grouped_mm(x.detach().double(), copy.mT if transposed else copy, offs)
    return torch.autograd.grad(product, copy, grad.double())[0]


@pytest.mark.parametrize("transposed", [True, False], ids=["weight.mT", "weight"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_gradient_is_added_and_nothing_else_changes(backend, dtype, transposed):
    plain, with_main = layer(dtype, transposed), layer(dtype, transposed)
    view = (lambda t: t.mT) if transposed else (lambda t: t)
    x, weight, bias, offs, _ = plain
    out = grouped_mm(x, view(weight), bias=bias, offs=offs, backend=backend)
    grad = integers(out.shape, dtype, 9, device=DEVICE)
    out.backward(grad)

    main_grad = with_main[-1]
    version = main_grad._version
    other = run(*with_main, transposed, backend=backend)
    assert torch.equal(other, out)
    assert (main_grad == 1).all(), "backward alone writes"
    other.backward(grad)
    assert main_grad._version > version
    assert with_main[1].grad is None
    assert torch.equal(main_grad, 1 + exact_gradient(x, weight, offs, grad, transposed).float())
    assert torch.equal(with_main[0].grad, x.grad)
    assert torch.equal(with_main[2].grad, bias.grad)


@pytest.mark.parametrize("strides", ["row", "col", "padded", "every_other"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_main_grad_of_any_strides(backend, strides):
    x, weight, _, offs, _ = layer(transposed=False)
    main_grad = strided_like(torch.ones(weight.shape, device=DEVICE), strides)
    out = grouped_mm(x, weight, offs=offs, main_grad=main_grad, backend=backend)
    out.backward(torch.ones_like(out))
    assert torch.equal(main_grad, 1 + exact_gradient(x, weight, offs, torch.ones_like(out), False).float())


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_groups_part_keeps_its_bits_and_no_gradient_is_made(monkeypatch, backend):
    x, weight, _, offs, _ = layer(torch.float16)
    main_grad, verify = poisoned(weight.shape, torch.float32, device=DEVICE)
    main_grad[::2] = 0
    before = main_grad.clone()
    out = run(x, weight, None, offs, main_grad, backend=backend)
    made, genuine = [], torch_ops.execute
    monkeypatch.setattr(torch_ops, "execute", lambda *given: made.append(genuine(*given)) or made[-1])
    out.sum().backward()
    verify()
    assert torch.equal(main_grad[1].view(torch.int32), before[1].view(torch.int32))
    assert not main_grad[::2].isnan().any()
    added = [each for each in made if each.shape[0] == 3]
    assert [each.data_ptr() for each in added] == [main_grad.data_ptr()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_small_steps_are_not_lost(backend):
    """4096 + 1 is no bfloat16: a gradient in that type, or sums in it, would lose the ones."""
    x = torch.ones(8, 1, dtype=torch.bfloat16, device=DEVICE)
    weight = torch.ones(1, 1, 1, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    main_grad = torch.full((1, 1, 1), 4096.0, device=DEVICE)
    for end in (1, 2):
        ends = torch.tensor([end], device=DEVICE)
        grouped_mm(x, weight, offs=ends, main_grad=main_grad, backend=backend).sum().backward()
    assert main_grad.item() == 4096 + 3


def test_micro_batches_add_up_also_when_their_forwards_come_first():
    x, weight, bias, offs, main_grad = layer()
    outs = [run(x, weight, bias, offs, main_grad) for _ in range(3)]
    for out in outs:
        out.sum().backward()
    once = exact_gradient(x, weight, offs, torch.ones_like(outs[0])).float()
    assert torch.equal(main_grad, 1 + 3 * once)


@pytest.mark.parametrize("reentrant", [True, False])
def test_under_activation_checkpointing(reentrant):
    x, weight, bias, offs, main_grad = layer()
    out = checkpoint(lambda x: run(x, weight, bias, offs, main_grad), x, use_reentrant=reentrant)
    out.sum().backward()
    assert torch.equal(main_grad, 1 + exact_gradient(x, weight, offs, torch.ones_like(out)).float())
    assert weight.grad is None


def test_under_autocast_and_a_counter():
    x, weight, bias, offs, main_grad = layer()
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        out = run(x, weight, bias, offs, main_grad)
    assert out.dtype == torch.bfloat16
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
        run(x, weight, bias, offs, main_grad)
    assert counter.get_total_flops() == 3 * 2 * 20 * 7 * 10, "two gradients and a product"
    assert torch.equal(main_grad, 1 + exact_gradient(x, weight, offs, torch.ones_like(out)).float())
    assert weight.grad is None


def test_a_backward_for_other_inputs_adds_nothing():
    """Pipelines split a backward in two. The half for the weights is the one that adds."""
    x, weight, bias, offs, main_grad = layer()
    out = run(x, weight, bias, offs, main_grad)
    torch.autograd.grad(out.sum(), x, retain_graph=True)
    out.sum().backward(inputs=[x, bias], retain_graph=True)
    assert (main_grad == 1).all()
    out.sum().backward(inputs=[weight])
    assert torch.equal(main_grad, 1 + exact_gradient(x, weight, offs, torch.ones_like(out)).float())


def test_without_gradients_it_does_nothing():
    x, weight, bias, offs, main_grad = layer()
    with torch.no_grad():
        out = run(x, weight, bias, offs, main_grad)
    assert not out.requires_grad
    assert (main_grad == 1).all()


# ---- what is refused


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda m: [1], TypeError, "main_grad must be a torch.Tensor, got list"),
        (lambda m: m.half(), TypeError, "main_grad must be torch.float32, got"),
        (lambda m: m[:2], ValueError, r"main_grad must have the shape of mat_b, \(3, 7, 10\), got \(2, 7, 10\)"),
        (lambda m: m.to("meta"), ValueError, "main_grad must be on the device of mat_b"),
        (lambda m: m.requires_grad_(), ValueError, "main_grad requires a gradient"),
        (lambda m: m[:1].expand(3, 7, 10), ValueError, "main_grad has elements that share memory"),
        (lambda m: torch.zeros(3, 7, 10, dtype=torch.complex64, device=DEVICE).conj().imag, ValueError, "negated view"),
    ],
    ids=["list", "float16", "shape", "device", "grad", "expanded", "negated"],
)
def test_refused(change, error, message):
    x, weight, _, offs, main_grad = layer(transposed=False)
    with pytest.raises(error, match=message):
        grouped_mm(x, weight, offs=offs, main_grad=change(main_grad))


def test_refused_with_other_arguments():
    x, weight, _, offs, main_grad = layer(transposed=False)
    with pytest.raises(ValueError, match="main_grad shares memory with mat_b"):
        grouped_mm(x, weight, offs=offs, main_grad=weight.detach())
    with FlopCounterMode(display=False), pytest.raises(ValueError, match="main_grad shares memory with mat_b"):
        grouped_mm(x, weight, offs=offs, main_grad=weight.detach())
    bias = main_grad.view(-1)[: 3 * 10].view(3, 10)
    with pytest.raises(ValueError, match="main_grad shares memory with bias"):
        grouped_mm(x, weight, offs=offs, bias=bias, main_grad=main_grad)
    ends = main_grad.view(torch.int32).view(-1)[:3]
    with pytest.raises(ValueError, match="main_grad shares memory with offs"):
        grouped_mm(x, weight, offs=ends, main_grad=main_grad)
    with torch.inference_mode():
        frozen = torch.zeros(weight.shape, device=DEVICE)
    with pytest.raises(ValueError, match=r"main_grad was made in torch.inference_mode\(\)"):
        grouped_mm(x, weight, offs=offs, main_grad=frozen)
    with pytest.raises(TypeError, match=r"offs must be a torch\.Tensor, got list"):
        grouped_mm(x, weight, offs=[1, 2, 3], main_grad=main_grad)
    with pytest.raises(ValueError, match="main_grad must be None where out is given"):
        grouped_mm(x, weight, offs=offs, main_grad=main_grad, out=torch.empty(20, 10, device=DEVICE))
    with pytest.raises(ValueError, match="main_grad must be None where mat_b requires no gradient"):
        grouped_mm(x, weight.detach(), offs=offs, main_grad=main_grad)
    for mode in ("n", "k", "batch"):
        a, b, ends, _ = operands(mode, grad=True)
        with pytest.raises(ValueError, match=r"main_grad must be None but in mode \"m\""):
            grouped_mm(a, b, offs=ends, main_grad=torch.zeros(b.shape, device=DEVICE))


def test_gradients_of_gradients_are_refused_before_anything_is_added():
    x, weight, _, offs, main_grad = layer(transposed=False)
    out = grouped_mm(x, weight, offs=offs, main_grad=main_grad)
    with pytest.raises(RuntimeError, match="main_grad must be None for gradients of gradients"):
        torch.autograd.grad(out.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"main_grad must be None where torch.autograd.grad asks for mat_b's"):
        torch.autograd.grad(out.sum(), weight, retain_graph=True)
    assert (main_grad == 1).all()
    out.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()


class _Layer(torch.nn.Module):
    def __init__(self, weight, main_grad):
        super().__init__()
        self.weight = torch.nn.Parameter(weight.detach())
        self.register_buffer("main_grad", main_grad)

    def forward(self, x, offs):
        return grouped_mm(x, self.weight, offs=offs, main_grad=self.main_grad)


def test_compilers_and_transforms_are_told():
    torch._dynamo.reset()
    x, weight, _, offs, main_grad = layer(transposed=False)

    def product(x):
        return grouped_mm(x, weight, offs=offs, main_grad=main_grad).sum()

    with pytest.raises(RuntimeError, match=r"main_grad must be None under torch.func"):
        torch.func.grad(product)(x)
    with pytest.raises(Exception, match=r"main_grad.*between two graphs: call it without fullgraph=True"):
        torch.compile(product, fullgraph=True, backend="aot_eager")(x)
    with pytest.raises(RuntimeError, match=r"main_grad must be None under torch.export"):
        torch.export.export(_Layer(weight, main_grad), (x.detach(), offs), strict=False)
    torch.compile(product, backend="aot_eager")(x).backward()  # the graph ends before it
    assert torch.equal(main_grad, 1 + exact_gradient(x, weight, offs, torch.ones(20, 10, device=DEVICE), False).float())
    torch._dynamo.reset()


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["auto", "triton"])
def test_a_training_step_on_a_gpu(backend):
    """Real sizes, through the hardware's additions; the memory that a 16-bit gradient would take is not taken."""
    offs = torch.tensor([300, 300, 1000, 2000], dtype=torch.int32, device="cuda")
    x = torch.empty(2048, 512, dtype=torch.bfloat16, device="cuda").random_(-2, 3)
    weight = torch.zeros(4, 1024, 512, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    main_grad = torch.zeros(4, 1024, 512, device="cuda")
    grad = torch.empty(2048, 1024, dtype=torch.bfloat16, device="cuda").random_(-2, 3)
    for _ in range(3):
        out = grouped_mm(x, weight.mT, offs=offs, main_grad=main_grad.mT, backend=backend)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out.backward(grad)
        torch.cuda.synchronize()
        taken = torch.cuda.max_memory_allocated() - before
    assert taken < 2**20
    assert torch.equal(main_grad, 3 * exact_gradient(x, weight, offs, grad).float())


DATA_PARALLEL = """
import torch
import torch.distributed as dist
from course_kernels import grouped_mm
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 4, 3))
        self.factor = torch.nn.Parameter(torch.ones(3))  # with a gradient of the usual kind
        self.main_grad = torch.zeros(2, 4, 3)

    def forward(self, x):
        return grouped_mm(x, self.weight, offs=torch.tensor([3, 5]), main_grad=self.main_grad) * self.factor

layer = Layer()
parallel = torch.nn.parallel.DistributedDataParallel(layer)
parallel(torch.ones(5, 4)).sum().backward()
print(layer.main_grad.unique().tolist(), layer.weight.grad.unique().tolist())
dist.destroy_process_group()
"""


def test_under_distributed_data_parallel_grad_is_zeros():
    done = forked.run(DATA_PARALLEL)
    assert done.stdout.strip() == "[2.0, 3.0] [0.0]", done.stderr
