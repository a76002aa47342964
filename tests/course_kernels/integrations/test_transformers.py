"""Small models of transformers on this library's experts, against its own loop over experts."""

from __future__ import annotations

import copy
import importlib
import importlib.util

import pytest
import torch

pytest.importorskip("transformers", minversion="5.24", reason="needs transformers 5.24 or later")

import transformers

import forked
from course_kernels import moe_feed_forward, runtime
from course_kernels.integrations import transformers as ours
from course_kernels.moe import ACTIVATIONS, Activation, Function

pytestmark = [pytest.mark.gpu] if runtime.mode() == "gpu" else []

DEVICE = runtime.device()
SMALL = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
MANY = dict(moe_intermediate_size=16, num_experts_per_tok=2)
MODELS = {
    "Qwen3Moe": SMALL | MANY | dict(num_experts=4, head_dim=8),
    "Mixtral": SMALL | dict(num_local_experts=4, num_experts_per_tok=2),
    "DeepseekV3": SMALL | MANY | dict(
        n_routed_experts=4, n_group=2, topk_group=1, n_shared_experts=1, first_k_dense_replace=1, q_lora_rank=8,
        kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8, num_key_value_heads=4,
    ),
    "Glm4Moe": SMALL | MANY | dict(
        n_routed_experts=4, n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1, head_dim=8,
    ),
    "GptOss": SMALL | dict(num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=8),
    "Olmoe": SMALL | dict(num_experts=4, num_experts_per_tok=2),
    "NemotronH": SMALL | MANY | dict(
        layers_block_type=["attention", "moe"], n_routed_experts=4, n_group=1, topk_group=1, n_shared_experts=1,
        head_dim=8, mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8, moe_shared_expert_intermediate_size=16,
        mlp_hidden_act="relu2",
    ),
}  # fmt: skip
FUSED = dict.fromkeys(MODELS, ACTIVATIONS["swiglu"]) | {
    "GptOss": ACTIVATIONS["swiglu_oai"], "NemotronH": ACTIVATIONS["relu2"],
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def registered():
    ours.register()


def model_of(name, dtype=torch.float32, **changes):
    """A small model of random weights, large enough that experts matter, and that gates reach their limits."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**MODELS[name] | changes)
    model = transformers.AutoModelForCausalLM.from_config(config).to(DEVICE)
    with torch.no_grad():
        for each, parameter in model.named_parameters():
            if parameter.dim() == 3:
                parameter.normal_(0, 0.3)
            elif each.endswith("_proj_bias"):
                parameter.normal_(0, 0.1)
    return model.to(dtype)


def ids(rows=2, columns=9):
    made = torch.Generator().manual_seed(1)
    return torch.randint(3, 64, (rows, columns), generator=made).to(DEVICE)


def trained(model, implementation):
    """The loss, the logits and the gradients of a step."""
    model.set_experts_implementation(implementation)
    model.zero_grad(set_to_none=True)
    out = model(ids(), labels=ids())
    out.loss.backward()
    grads = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return out.loss.detach(), out.logits.detach(), grads


def assert_alike(one, other, tolerance):
    scale = max(1e-6, other.abs().max().item())
    assert (one - other).abs().max().item() <= tolerance * scale


def experts_of(model):
    return [each for each in model.modules() if hasattr(each, "_apply_gate") or hasattr(each, "has_gate")]


@pytest.mark.parametrize("name", MODELS)
def test_a_step_equals_the_loop_over_experts(name):
    model = model_of(name)
    assert experts_of(model)
    assert all(ours.activation_of(each) == FUSED[name] for each in experts_of(model)), "it runs as one layer"
    loss, logits, grads = trained(model, "eager")
    my_loss, my_logits, my_grads = trained(model, "course_kernels")
    assert_alike(my_loss, loss, 1e-6)
    assert_alike(my_logits, logits, 1e-5)
    assert my_grads.keys() == grads.keys()
    for each, grad in grads.items():
        assert_alike(my_grads[each], grad, 2e-5)


@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss", "NemotronH"])
def test_in_bfloat16_it_is_as_near_to_float32_as_the_loop(name):
    exact = trained(model_of(name), "eager")[1]
    model = model_of(name, torch.bfloat16)
    loop, mine = (
        (trained(model, implementation)[1].float() - exact).abs().max()
        for implementation in ("eager", "course_kernels")
    )
    assert mine <= 2 * loop


@pytest.mark.parametrize("name", MODELS)
def test_generation_token_by_token(name):
    model = model_of(name).eval()
    found = []
    for implementation in ("eager", "course_kernels"):
        model.set_experts_implementation(implementation)
        found.append(model.generate(ids(1, 4), max_new_tokens=6, do_sample=False))
    assert torch.equal(*found)


@pytest.mark.parametrize(("name", "dynamic"), [("Qwen3Moe", True), ("GptOss", None)])
def test_compiled_without_a_graph_break(name, dynamic):
    from torch._dynamo.backends.debugging import aot_eager

    operators = set()

    def backend(graph, inputs):
        operators.update(str(node.target) for node in graph.graph.nodes)
        return aot_eager(graph, inputs)

    model = model_of(name, num_hidden_layers=1 if dynamic else 2)  # symbols make a compiler slow
    wanted = trained(model, "course_kernels")
    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, fullgraph=True, dynamic=dynamic, backend=backend)
    found = trained(model, "course_kernels")
    torch._dynamo.reset()
    ours_in_it = {each for each in operators if each.startswith("course_kernels.")}
    assert ours_in_it == {"course_kernels.moe_routing", "course_kernels.moe_feed_forward"}, "the gate is fused as ever"
    assert_alike(found[1], wanted[1], 1e-6)
    for each, grad in wanted[2].items():
        assert_alike(found[2][each], grad, 1e-5)


@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss"])
def test_save_and_load(name, tmp_path):
    model = model_of(name).eval()
    model.save_pretrained(tmp_path)
    kind = transformers.AutoModelForCausalLM
    loaded = kind.from_pretrained(tmp_path, experts_implementation="course_kernels").to(DEVICE).eval()
    assert loaded.config._experts_implementation == "course_kernels"
    model.set_experts_implementation("course_kernels")
    assert torch.equal(loaded(ids()).logits, model(ids()).logits)


def test_autocast_and_checkpointing():
    model = model_of("Qwen3Moe").train()
    exact = trained(model, "eager")
    model.gradient_checkpointing_enable()
    found = trained(model, "course_kernels")
    for each, grad in exact[2].items():
        assert_alike(found[2][each], grad, 2e-5)
    with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
        loss, _, grads = trained(model, "course_kernels")
    assert_alike(loss, exact[0], 2e-2)
    assert all(grad.dtype == torch.float32 for grad in grads.values())


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
@pytest.mark.parametrize("model", ["Qwen3Moe", "GptOss"])
@pytest.mark.parametrize("on", ["attention", "gate_up_proj", "experts", "two"])
def test_adapters(monkeypatch, on, model):
    """PEFT's adapters, on both weights of experts, on one, or two on each. A single one is the layer's: the sum of
    weight and adapter is made by PEFT's own check alone."""
    import peft
    from peft.tuners.lora import layer

    sums = []
    genuine = layer._LoraFactorsProxy.forward
    monkeypatch.setattr(layer._LoraFactorsProxy, "forward", lambda self, w: sums.append(1) or genuine(self, w))
    targets = ["mlp.experts.gate_up_proj"] + ["mlp.experts.down_proj"] * (on != "gate_up_proj")
    options = dict(target_modules=["q_proj", "v_proj"]) if on == "attention" else dict(
        target_modules=[], target_parameters=targets
    )  # fmt: skip
    found, made = [], []
    for implementation in ("eager", "course_kernels"):
        torch.manual_seed(3)
        config = peft.LoraConfig(r=2, init_lora_weights=False, **options)
        adapted = peft.get_peft_model(model_of(model), config)
        if on == "two":
            adapted.add_adapter("other", config)
            adapted.base_model.set_adapter(["default", "other"])
        sums.clear()
        _, logits, grads = trained(adapted.base_model.model, implementation)
        assert grads
        assert all("lora" in each for each in grads)
        found.append((logits, grads))
        made.append(len(sums))
    assert_alike(found[1][0], found[0][0], 1e-5)
    for each, grad in found[0][1].items():
        assert_alike(found[1][1][each], grad, 2e-5)
    if on in ("gate_up_proj", "experts"):
        assert made[1] < made[0], "a sum of weight and adapter is made for the layer"


# ---- modules of experts alone


class Owner:
    """A configuration with what a module of experts asks for."""

    hidden_size, num_local_experts, num_experts, intermediate_size, moe_intermediate_size = 128, 3, 3, 128, 128
    hidden_act, swiglu_alpha, swiglu_limit, _experts_implementation = "silu", 1.3, 0.5, "eager"
    rms_norm_eps = post_norm_eps = 1e-5


def filled(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    return module.to(DEVICE)


def both(module, tokens=7, elsewhere=False):
    """The results and gradients of a module's own loop and of ours."""
    found = []
    for implementation in ("eager", "course_kernels"):
        made = copy.deepcopy(module)
        made.config = copy.copy(made.config)
        made.config._experts_implementation = implementation
        rng = torch.Generator().manual_seed(2)
        x = torch.randn(tokens, 128, generator=rng).to(DEVICE).requires_grad_()
        chosen = torch.randint(0, 3, (tokens, 2), generator=rng).to(DEVICE)
        weights = torch.rand(tokens, 2, generator=rng).to(DEVICE)
        if elsewhere:
            chosen[::2, 1] = chosen[0] = 3
            weights = weights.masked_fill(chosen == 3, 0.0)
        weights.requires_grad_()
        out = made(x, chosen, weights)
        out.backward(torch.randn(tokens, 128, generator=rng).to(DEVICE))
        found.append([out.detach(), x.grad, weights.grad, *(each.grad for each in made.parameters())])
    return found


def plain_experts(**options):
    """Experts as transformers decorates them."""
    act, gate = options.pop("act", "silu"), options.get("has_gate", True)
    crossed, bias = options.get("is_transposed", False), options.get("has_bias", False)

    class Experts(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            self.num_experts, self.act_fn = 3, transformers.activations.ACT2FN[act]
            width, shape = (256 if gate else 128), (lambda *s: s if not crossed else (s[0], s[2], s[1]))
            first = "gate_up_proj" if gate else "up_proj"
            setattr(self, first, torch.nn.Parameter(torch.empty(shape(3, width, 128))))
            self.down_proj = torch.nn.Parameter(torch.empty(shape(3, 128, 128)))
            if bias:
                setattr(self, f"{first}_bias", torch.nn.Parameter(torch.empty(3, width)))
                self.down_proj_bias = torch.nn.Parameter(torch.empty(3, 128))
            self.post_expert_norm = torch.nn.RMSNorm(128) if options.get("has_post_expert_norm") else None

        def forward(self, x, chosen, weights):
            out = torch.zeros_like(x)
            for e in range(3):
                token, choice = (chosen == e).nonzero(as_tuple=True)
                first = self.gate_up_proj if gate else self.up_proj
                hidden = x[token] @ (first[e] if crossed else first[e].mT)
                if bias:
                    hidden = hidden + (self.gate_up_proj_bias if gate else self.up_proj_bias)[e]
                hidden = self._apply_gate(hidden) if gate else self.act_fn(hidden)
                result = hidden @ (self.down_proj[e] if crossed else self.down_proj[e].mT)
                result = result + self.down_proj_bias[e] if bias else result
                result = result if self.post_expert_norm is None else self.post_expert_norm(result)
                out = out.index_add(0, token, result * weights[token, choice, None])
            return out

    return Experts, options


@pytest.mark.parametrize(
    "act", ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "quick_gelu", "relu", "relu2", "tanh"]
)
@pytest.mark.parametrize("has_gate", [True, False])
def test_activations(act, has_gate):
    kind, options = plain_experts(act=act, has_gate=has_gate)
    module = filled(ours.moe.use_experts_implementation(**options)(kind)(Owner()))
    assert (ours.activation_of(module) is None) == (act == "tanh")
    for one, other in zip(*both(module)):
        assert_alike(other, one, 2e-5)


@pytest.mark.parametrize(
    "options",
    [dict(is_transposed=True), dict(has_bias=True), dict(has_bias=True, has_gate=False, is_transposed=True),
     dict(is_concatenated=False), dict(has_post_expert_norm=True), dict(has_post_expert_norm=True, has_bias=True)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "sentinels"])
def test_layouts_norms_and_tokens_of_other_ranks(options, elsewhere):
    kind, options = plain_experts(**options)
    module = filled(ours.moe.use_experts_implementation(**options)(kind)(Owner()))
    module._is_expert_parallel = elsewhere
    for one, other in zip(*both(module, elsewhere=elsewhere)):
        assert_alike(other, torch.zeros_like(other) if one is None else one, 2e-5)


def test_gates_of_a_class_or_an_instance():
    """A gate that is not known runs as the module computes it, and one that was replaced is not taken for the old."""
    kind, options = plain_experts()
    module = filled(ours.moe.use_experts_implementation(**options)(kind)(Owner()))
    assert ours.activation_of(module) == ACTIVATIONS["swiglu"]
    module._apply_gate = lambda pre: pre.chunk(2, dim=-1)[0].cos() * pre.chunk(2, dim=-1)[1]
    assert ours.activation_of(module) is None
    for one, other in zip(*both(module)):
        assert_alike(other, one, 2e-5)

    class Other(kind):
        def _apply_gate(self, pre):
            return super()._apply_gate(pre) + 1

    module = filled(ours.moe.use_experts_implementation(**options)(Other)(Owner()))
    assert ours.activation_of(module) is None
    for one, other in zip(*both(module)):
        assert_alike(other, one, 2e-5)


@pytest.mark.parametrize(
    ("module", "name", "wanted"),
    [
        ("gpt_oss", "GptOssExperts", Activation(Function.SILU, True, 1.3, 0.5, 1.0)),
        ("openai_privacy_filter", "OpenAIPrivacyFilterExperts", Activation(Function.SILU, True, 1.3, 0.5, 1.0)),
        ("deepseek_v4", "DeepseekV4Experts", Activation(Function.SILU, True, 1.0, 0.5, 0.0)),
        ("minimax_m3_vl", "MiniMaxM3VLExperts", Activation(Function.SILU, True, 1.3, 0.5, 1.0)),
        ("muse_spark", "MuseSparkExperts", None),
    ],
)
def test_modules_of_models(module, name, wanted):
    """Known gates equal the models' own, with limits that values reach."""
    found = getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), name)
    config = Owner()
    config.n_routed_experts, config.moe_hidden_size = 3, 128
    experts = filled(found(config))
    if wanted is not None:
        assert ours.activation_of(experts) == wanted
    for one, other in zip(*both(experts)):
        assert_alike(other, one, 2e-5)


def test_one_row_and_no_rows():
    kind, options = plain_experts()
    module = filled(ours.moe.use_experts_implementation(**options)(kind)(Owner()))
    for tokens in (1, 0):
        for one, other in zip(*both(module, tokens)):
            assert_alike(other, torch.zeros_like(other) if one is None else one, 2e-5) if other.numel() else None


# ---- float8


def float8_experts(gate=(), **options):
    config = Owner()
    config.swiglu_alpha = config.swiglu_limit = None
    for name, value in dict(gate).items():
        setattr(config, name, value)
    kind = ours.moe.use_experts_implementation(
        experts_class=type("Experts", (ours.finegrained_fp8.FP8Experts,), {}),
        experts_interface=ours.finegrained_fp8.ALL_FP8_EXPERTS_FUNCTIONS,
    )  # fmt: skip
    module = kind(config, **dict(block_size=[128, 128]) | options)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = torch.rand(parameter.shape) if "scale" in name else torch.randn(parameter.shape)
            parameter.copy_((values * 0.1 + 0.01 if "scale" in name else values).to(parameter.dtype))
    config._experts_implementation = "course_kernels"
    return module.to(DEVICE).requires_grad_(False)


GATES = {
    "plain": {}, "limited": dict(swiglu_limit=0.5), "oai": dict(swiglu_alpha=1.7, swiglu_limit=0.5),
    "softcap": dict(mlp_gate_softcap=2.0, mlp_up_softcap=2.0),
}  # fmt: skip


@pytest.mark.parametrize("gate", GATES)
def test_float8_experts(gate, monkeypatch):
    """Rows are rounded to float8 block by block, and so are those between the products: few bits are left."""
    if not runtime.supports_fp8():
        pytest.skip("this GPU does not multiply float8_e4m3fn")
    module, fused = float8_experts(GATES[gate]), []
    monkeypatch.setattr(ours, "moe_feed_forward", lambda *a, **b: fused.append(1) or moe_feed_forward(*a, **b))
    # Drawn in float32, on the CPU: bfloat16 numbers differ between torch's versions, and a norm of ten sums with them.
    x, weights = (draw.to(DEVICE) for draw in (torch.randn(6, 128).bfloat16(), torch.rand(6, 2)))
    x.requires_grad_(), weights.requires_grad_()
    chosen = torch.tensor([[0, 1], [2, 0], [3, 1], [3, 3], [1, 1], [2, 2]], device=DEVICE)
    out = module(x, chosen, weights)
    assert bool(fused) == (gate != "softcap"), "one layer where the gate is known"
    out.backward(torch.ones_like(out))
    leaf, top = x.detach().double().requires_grad_(), weights.detach().double().requires_grad_()
    wide = {}
    for name in ("gate_up_proj", "down_proj"):
        scale = getattr(module, f"{name}_scale_inv").double()
        wide[name] = getattr(module, name).double() * scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
    wanted = torch.zeros(6, 128, dtype=torch.float64, device=DEVICE)
    for e in range(3):
        token, choice = (chosen == e).nonzero(as_tuple=True)
        hidden = module._apply_gate(leaf[token] @ wide["gate_up_proj"][e].mT).double()
        wanted = wanted.index_add(0, token, hidden @ wide["down_proj"][e].mT * top[token, choice, None])
    wanted.backward(torch.ones_like(wanted))
    assert out.dtype == torch.bfloat16
    assert not out[3].any()
    # A gradient jumps at a limit: of arguments beside it, rounding puts some on the other side.
    limit = 0.08 if gate in ("plain", "softcap") else 0.3
    for one, other, most in ((out, wanted, 0.08), (x.grad, leaf.grad, limit), (weights.grad, top.grad, 0.08)):
        assert (one.double() - other).norm() < most * other.norm()


def test_float8_experts_compiled_under_autocast():
    """A compiled backward has its forward's autocast, an eager one has none."""
    if not runtime.supports_fp8():
        pytest.skip("this GPU does not multiply float8_e4m3fn")
    module = float8_experts(GATES["softcap"])
    chosen, weights = torch.tensor([[0, 1], [2, 0], [1, 1]], device=DEVICE), torch.rand(3, 2).to(DEVICE)
    x, grads = torch.randn(3, 128).to(DEVICE), []

    def call(x):
        with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
            return module(x, chosen, weights)

    torch._dynamo.reset()
    for function in (call, torch.compile(call, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        function(leaf).sum().backward()
        grads.append(leaf.grad)
    torch._dynamo.reset()
    assert torch.equal(*grads)


@pytest.mark.parametrize(
    "options", [dict(block_size=None), dict(block_size=[64, 64]), dict(activation_scheme="static")], ids=str
)
def test_float8_forms_that_are_not_supported(options):
    module = float8_experts(**options)
    x, chosen = torch.randn(2, 128, device=DEVICE), torch.zeros(2, 1, dtype=torch.int64, device=DEVICE)
    with pytest.raises(NotImplementedError, match="use experts_implementation='eager'"):
        module(x, chosen, torch.ones(2, 1, device=DEVICE))


# ---- imports


def test_nothing_else_imports_transformers():
    code = "import course_kernels, course_kernels.integrations, sys; assert 'transformers' not in sys.modules"
    done = forked.run(code)
    assert done.returncode == 0, done.stderr


OLD = (
    "import importlib.metadata as metadata; of = metadata.version; "
    "metadata.version = lambda name: '5.9' if name == 'transformers' else of(name)"
)


@pytest.mark.parametrize("module", ["transformers", "transformers_ep"])
@pytest.mark.parametrize(
    "before, got",
    [("import sys; sys.modules['transformers'] = None", "No module named"), (OLD, "found transformers==5.9")],
    ids=["none", "old"],
)
def test_without_a_transformers_that_is_known_it_says_what_to_install(module, before, got):
    code = f"{before}; import course_kernels.integrations.{module}"
    done = forked.run(code)
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("ImportError: course_kernels.integrations needs transformers 5.24 (")
    assert got in said
    assert said.endswith(runtime.INSTALL_EXTRA.format("transformers"))
