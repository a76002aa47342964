"""The benchmark of grouped_mm: exact rows, providers that compute the product, and numbers that mean what they say.

Nothing is timed here: a clock made for the tests runs each function and gives the times it was told to.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import sys
import types

import pytest
import torch

from clock import Clock
from course_kernels import runtime
from course_kernels.bench import grouped, record
from course_kernels.bench import providers as known
from course_kernels.bench import rows as bench_rows
from course_kernels.bench.configurations import SWEPT
from course_kernels.bench.interface import Calls, Provider, make_operands
from course_kernels.bench.rows import PASSES, Row
from gemm_course.cli import app as command
from gemm_course.cli import bench as bench_command
from places import ROOT

TINY = Row("tiny", "40 over 4, 16, 24", (8, 0, 24, 8), 16, 24, "compute")
DECODE = Row("tiny-decode", "1 each over 3, 8, 16", (1, 1, 1), 8, 16, "memory")


class Correct(Provider):
    """Ours, as far as these tests care; `spoil` changes a result before it is handed out."""

    name, label, role = "mine", "mine", "ours"

    def __init__(self, spoil=lambda result, of: result):
        self.spoil = spoil

    def prepare(self, o):
        def forward():
            return torch.cat([x.float() @ w.float().mT for x, w in zip(o.a.split(o.sizes), o.weight)]).bfloat16()

        def d_a():
            return torch.cat([d.float() @ w.float() for d, w in zip(o.d_out.split(o.sizes), o.weight)]).bfloat16()

        def d_b():
            parts = zip(o.d_out.split(o.sizes), o.a.split(o.sizes))
            return torch.stack([d.float().mT @ x.float() for d, x in parts]).bfloat16()

        passes = {"forward": forward, "called": forward, "dA": d_a, "dB": d_b}
        spoilt = {of: {"": lambda f=f, of=of: self.spoil(f(), of)} for of, f in passes.items()}
        return Calls(spoilt["forward"], spoilt["called"], spoilt["dA"], spoilt["dB"])


PEERS = [known.Torch(), known.CublasLoop(), known.Dense()]


def measure(rows=(TINY,), providers=None, **arguments):
    arguments = {"timer": Clock(), "repeats": 4, "device": "cpu"} | arguments
    return grouped.measure(list(rows), providers or [Correct(), *PEERS], **arguments)


# rows


def test_rows_are_those_of_the_targets():
    sizes = {row.name: (row.groups, row.total_m, row.N, row.K) for row in bench_rows.rows()}
    assert len(sizes) == 9
    assert sizes["equal12"] == (12, 8192, 2048, 1024)
    assert sizes["zipf8"] == (8, 16384, 14336, 4096)
    assert sizes["zipf128-up"] == (128, 32768, 1536, 2048)
    assert sizes["zipf128-down"] == (128, 32768, 2048, 768)
    assert sizes["decode256"] == (256, 1024, 4096, 7168)
    assert sizes["decode32"] == (32, 640, 7168, 2048)
    for name, groups in (("jitter4", 4), ("jitter8-tall", 8), ("jitter8-square", 8)):
        assert sizes[name][0] == groups
        assert sizes[name][1] == pytest.approx(32768, rel=0.002)
    assert [row.name for row in bench_rows.variants()] == ["jitter12", "one-hot8", "half-empty128", "single256"]


def test_sizes_are_the_same_everywhere():
    """Records of two machines are compared row by row: these numbers must never move."""
    table = bench_rows.by_name()
    assert table["jitter4"].sizes == (6395, 9900, 9489, 6988)
    assert table["jitter8-tall"].sizes == (3366, 5134, 3790, 4909, 3958, 2880, 3977, 4802)
    assert table["jitter8-square"].sizes == (4976, 4282, 3659, 3535, 5322, 3594, 3990, 3405)
    assert table["jitter12"].sizes == (663, 707, 856, 669, 686, 718, 554, 688, 736, 803, 516, 602)
    assert table["zipf8"].sizes == ZIPF8
    assert table["equal12"].sizes == (682, 683, 683) * 4
    for name, weighed in (("zipf128-up", 2239835), ("zipf128-down", 2321851)):
        assert sum(g * size for g, size in enumerate(table[name].sizes)) == weighed


ZIPF8 = (2910, 1068, 1208, 1398, 960, 5066, 2103, 1671)


def test_sizes_have_the_shape_that_their_names_promise():
    table = bench_rows.by_name()
    for name in ("jitter4", "jitter8-tall", "jitter8-square", "jitter12"):
        mean = {"jitter12": 8192 / 12}.get(name, 32768 / table[name].groups)
        assert all(0.7 * mean - 1 <= size <= 1.3 * mean + 1 for size in table[name].sizes)
    largest_first = sorted(table["zipf128-up"].sizes, reverse=True)
    assert largest_first[0] / largest_first[9] == pytest.approx(10**0.8, rel=0.01)
    assert list(table["zipf128-up"].sizes) != largest_first, "a router's favourites are not the first experts"
    assert table["zipf128-up"].sizes != table["zipf128-down"].sizes
    assert sorted(table["one-hot8"].sizes) == [0] * 7 + [16384]
    assert table["half-empty128"].sizes[:4] == (0, 512, 0, 512)
    assert sum(size == 0 for size in table["half-empty128"].sizes) == 64
    assert set(table["single256"].sizes) == {1}


def test_work_is_counted_once():
    assert TINY.flops == 2 * 40 * 16 * 24
    activations = 2 * 40 * (16 + 24)
    assert TINY.bytes_moved() == TINY.bytes_moved("dA") == activations + 2 * 3 * 16 * 24, "an empty group's is not read"
    assert TINY.bytes_moved("dB") == activations + 2 * 4 * 16 * 24, "but its gradient is written"
    assert TINY.rate(10.0) == pytest.approx(TINY.flops / 10e-6 / 1e12)
    assert DECODE.rate(10.0, "dB") == pytest.approx(DECODE.bytes_moved("dB") / 10e-6 / 1e12)
    assert (TINY.unit, DECODE.unit) == ("TFLOP/s", "TB/s")


def test_rows_are_chosen_by_the_beginning_of_their_names():
    def names(chosen):
        return [row.name for row in bench_rows.select(chosen)]

    assert names(["zipf128"]) == ["zipf128-up", "zipf128-down"]
    assert names(["decode", "equal12"]) == ["equal12", "decode256", "decode32"], "in the table's order"
    assert names(["zipf8"]) == ["zipf8"]
    assert len(names(None)) == 13
    with pytest.raises(ValueError, match="got 'equal21'; did you mean equal12"):
        bench_rows.select(["equal21"])


# providers


@pytest.mark.parametrize("provider", PEERS, ids=lambda p: p.name)
@pytest.mark.parametrize("row", [TINY, DECODE], ids=lambda row: row.name)
def test_peers_compute_the_product_and_its_gradients(provider, row):
    operands = make_operands(row, "cpu")
    calls = provider.prepare(operands)
    for of in PASSES:
        for function in calls.of(of).values():
            grouped.verify(function(), calls.operands or operands, of)
    assert set(calls.of("forward")) == set(calls.of("dB")) == {""}


def test_operands_are_random_and_results_hold_nan():
    operands = make_operands(TINY, "cpu")
    assert operands.offs.tolist() == [8, 8, 32, 40]
    assert operands.offs.dtype == torch.int32
    for matrix, scale in ((operands.a, 1.0), (operands.d_out, 1.0), (operands.weight, 24**-0.5)):
        assert matrix.float().std().item() == pytest.approx(scale, rel=0.1)
    for result, shape in ((operands.out, (40, 16)), (operands.d_a, (40, 24)), (operands.d_weight, (4, 16, 24))):
        assert result.shape == shape
        assert result.isnan().all()
    assert torch.equal(make_operands(TINY, "cpu").a, operands.a)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("row", [TINY, DECODE], ids=lambda row: row.name)
def test_ours_computes_the_product_and_its_gradients(backend, row):
    operands = make_operands(row, runtime.device(), torch.float16)  # bfloat16 is slow in the interpreter
    calls = known.Ours(backend).prepare(operands)
    for of in PASSES:
        result = calls.of(of)[""]()
        grouped.verify(result, operands, of)
        shared = {"forward": operands.out, "dA": operands.d_a, "dB": operands.d_weight}.get(of)
        assert of == "called" or result.data_ptr() == shared.data_ptr(), "every provider writes the same memory"


def test_a_new_backend_of_grouped_mm_is_measured_as_soon_as_it_is_accepted(monkeypatch):
    assert [p.name for p in known.providers() if p.role == "ours"] == ["triton", "cute"]
    monkeypatch.setattr(known.grouped_checks, "BACKENDS", ("auto", "triton", "torch", "new"))
    assert [p.name for p in known.providers() if p.role == "ours"] == ["triton", "new"]
    assert known.select(["new"])[0].label == "grouped_mm (new)"


def test_cute_is_left_out_with_a_reason_where_it_cannot_run(monkeypatch):
    (cute,) = known.select(["cute"])
    monkeypatch.setattr(known.grouped_cute, "runs_on", lambda device: False)
    assert "compute capability 9.0" in cute.unavailable()
    monkeypatch.setattr(known.grouped_cute, "runs_on", lambda device: True)
    monkeypatch.setattr(known.grouped_cute, "installed", lambda: False)
    assert "[cutlass]" in cute.unavailable()
    monkeypatch.setattr(known.grouped_cute, "installed", lambda: True)
    assert cute.unavailable() is None
    assert known.select(["triton"])[0].unavailable() is None


def test_dense_is_no_ceiling_where_memory_bounds():
    assert "copy bandwidth" in known.Dense().unsuited(DECODE)
    assert known.Dense().unsuited(TINY) is None


def test_providers_say_what_keeps_them_away(monkeypatch):
    present = {"quack": False, "cutlass": True}
    monkeypatch.setattr(known.importlib.util, "find_spec", lambda name: present.get(name) or None)
    assert known.Quack().unavailable() == "quack-kernels is not installed"
    present |= {"quack": True, "cutlass": False}
    assert known.Quack().unavailable() == "nvidia-cutlass-dsl is not installed"
    monkeypatch.delattr(torch.nn.functional, "grouped_mm")
    assert known.Torch().unavailable() is None, "the older name will do"
    monkeypatch.delattr(torch, "_grouped_mm")
    assert "has no grouped_mm" in known.Torch().unavailable()
    odd = Row("odd", "", (4,), 12, 20, "compute")
    assert known.Torch().unsuited(odd)
    assert "multiple of 64, got 20" in known.Tutorial().unsuited(odd)


def test_unknown_providers_are_refused():
    assert [provider.name for provider in known.select(["dense", "torch"])] == ["torch", "dense"]
    with pytest.raises(ValueError, match=r"providers must be among .*torch.*; got 'cublas'"):
        known.select(["cublas"])


def test_quack_is_asked_for_the_right_products(monkeypatch):
    """Its calls, on a stand-in that computes what QuACK's source says that it does."""
    asked = []

    def gemm(A, B, D, C, semaphore, tile_M, tile_N, cluster_M, cluster_N, *, pingpong, persistent,
             cu_seqlens_m=None, cu_seqlens_k=None):  # fmt: skip
        asked.append((tile_M, tile_N, cluster_M, cluster_N, pingpong))
        starts = cu_seqlens_m if cu_seqlens_k is None else cu_seqlens_k
        assert starts.dtype == torch.int32
        for g, (start, end) in enumerate(zip(starts.tolist(), starts.tolist()[1:])):
            if cu_seqlens_k is None:
                assert A.stride(-1) == D.stride(-1) == 1
                D[start:end] = (A[start:end].float() @ B[g].float().mT).bfloat16()
            else:
                assert A.stride(-2) == B.stride(-2) == 1
                D[g] = (A[:, start:end].float() @ B[:, start:end].float().mT).bfloat16()

    module = types.ModuleType("quack.gemm")
    module.gemm = gemm
    monkeypatch.setitem(sys.modules, "quack", types.ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.gemm", module)
    operands = make_operands(TINY, "cpu")
    calls = known.Quack().prepare(operands)
    for of, count in (("forward", 12), ("called", 1), ("dA", 3), ("dB", 3)):
        asked.clear()
        assert len(calls.of(of)) == count
        for function in calls.of(of).values():
            grouped.verify(function(), operands, of)
        assert len(set(asked)) == count


def test_the_tutorials_kernel_gets_float16_groups_and_each_of_its_configurations(monkeypatch):
    from course_kernels.bench import tutorial_peer

    class Plan:
        def __init__(self, group_A, group_B, config):
            assert all(m.dtype == torch.float16 and m.is_contiguous() for m in [*group_A, *group_B])
            self.group_A, self.group_B, self.config = group_A, group_B, None

        def run(self):
            asked.append(self.config["NUM_SM"])
            return [(a.float() @ b.float()).half() for a, b in zip(self.group_A, self.group_B)]

    asked, settings = [], [dict(NUM_SM=n, BLOCK_M=128, BLOCK_N=64, BLOCK_K=32) for n in (84, 132)]
    monkeypatch.setattr(tutorial_peer, "TutorialPlan", Plan)
    monkeypatch.setattr(tutorial_peer, "configurations", lambda: settings)
    operands = make_operands(TINY, "cpu")
    calls = known.Tutorial().prepare(operands)
    assert list(calls.forward) == ["128x64x32, 84 programs", "128x64x32, 132 programs"]
    for function in calls.forward.values():
        grouped.verify(function(), operands, "forward")
    assert asked == [84, 132]
    assert not calls.d_a
    assert not calls.d_b


# verification


def spoilt(index, value):
    def spoil(result, of):
        result[index] = value
        return result

    return spoil


@pytest.mark.parametrize("of", PASSES)
def test_a_wrong_element_is_found(of):
    operands = make_operands(TINY, "cpu")
    result = next(iter(Correct().prepare(operands).of(of).values()))()
    grouped.verify(result, operands, of)
    place = (2, 3, 5) if of == "dB" else (9, 5)  # both in group 2
    for value in (float("nan"), result[place].item() + 1.0, float("inf")):
        broken = result.clone()
        broken[place] = value
        with pytest.raises(grouped.WrongResult, match=r"1 of \d+ elements of group 2 are wrong \(24 rows\)"):
            grouped.verify(broken, operands, of)


def test_the_gradient_of_an_empty_group_must_be_zero():
    operands = make_operands(TINY, "cpu")
    result = next(iter(Correct().prepare(operands).d_b.values()))()
    result[1, 0, 0] = 1e-30
    with pytest.raises(grouped.WrongResult, match="group 1"):
        grouped.verify(result, operands, "dB")


def test_a_result_of_another_shape_is_wrong():
    operands = make_operands(TINY, "cpu")
    with pytest.raises(grouped.WrongResult, match="shape"):
        grouped.verify(operands.out[:, :8], operands, "forward")


# measuring


def test_a_record_has_every_number():
    clock = Clock({"mine": 10.0, "torch": 15.0, "loop": 20.0, "dense": 8.0}, host=7.25)
    results = measure([TINY, DECODE], timer=clock)
    entry = results["rows"]["tiny"]
    assert entry["sizes"] == [8, 0, 24, 8]
    for of in ("forward", "dA", "dB"):
        assert {name: us["median_us"] for name, us in entry["us"][of].items()} == clock.us
    assert set(entry["us"]["called"]) == {"mine", "torch", "loop"}
    assert entry["rate"]["forward"]["mine"] == pytest.approx(TINY.flops / 10 / 1e6, rel=1e-3)
    assert entry["host_us"] == {"mine": 7.2, "torch": 7.2, "loop": 7.2}
    assert "dense" in results["rows"]["tiny-decode"]["unsuited"]
    assert results["rows"]["tiny-decode"]["rate"]["dB"]["mine"] == pytest.approx(DECODE.rate(10.0, "dB"), rel=1e-3)
    assert results["copy_tb_s"] == 4.0
    assert results["providers"]["dense"]["role"] == "ceiling"
    assert (["dense", "loop", "mine", "torch"], 4) in clock.calls, "in turn, not one after the other"
    faster = results["speedups"]["mine"]["forward"]
    assert faster["torch"] == {"times": 1.5, "rows": 2, "worst": 1.5}
    assert faster["best peer"]["times"] == 1.5
    assert faster["dense"] == {"times": 0.8, "rows": 1, "worst": 0.8}


def test_means_are_geometric():
    rows = {
        "a": {"us": {"forward": {"mine": {"median_us": 1.0}, "torch": {"median_us": 4.0}}}},
        "b": {"us": {"forward": {"mine": {"median_us": 4.0}, "torch": {"median_us": 2.0}}}},
        "c": {"us": {"forward": {"torch": {"median_us": 2.0}}}},
    }
    about = {"mine": {"role": "ours"}, "torch": {"role": "peer"}}
    found = grouped.speedups({"providers": about, "rows": rows})["mine"]["forward"]["torch"]
    assert found == {"times": round(math.sqrt(2), 3), "rows": 2, "worst": 0.5}


@pytest.mark.parametrize("of", PASSES)
def test_a_wrong_result_is_never_timed(of):
    def spoil(result, which):
        if which == of:
            result.view(-1)[0] += 2.0
        return result

    entry = measure(providers=[Correct(spoil), known.Torch()])["rows"]["tiny"]
    timed = {which: "mine" in us for which, us in entry["us"].items()}
    assert timed == {which: which != of for which in PASSES}
    assert "WrongResult" in entry["failed"]["mine"][of]
    assert set(entry["us"][of]) == {"torch"}, "the others go on"


def test_an_output_that_is_not_written_is_seen():
    """The first call writes, the next does not: only poison between them shows it."""

    class Lazy(Correct):
        def prepare(self, operands):
            done, right = [], super().prepare(operands)

            def once():
                if not done:
                    done.append(next(iter(right.forward.values()))())
                return done[0]

            return Calls({"": once})

    entry = measure(providers=[Lazy()])["rows"]["tiny"]
    assert "WrongResult" in entry["failed"]["mine"]["forward"]


def test_a_provider_that_raises_is_noted_and_the_others_go_on():
    class Broken(Correct):
        name, role = "broken", "peer"

        def prepare(self, operands):
            raise RuntimeError("no kernel image\nand a long story")

    results = measure(providers=[Correct(), Broken()])
    assert results["rows"]["tiny"]["failed"] == {"broken": {"prepare": "RuntimeError: no kernel image"}}
    assert set(results["rows"]["tiny"]["us"]["forward"]) == {"mine"}


def test_a_lost_device_ends_the_run():
    class Lost(Clock):
        def settle(self):
            raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure(timer=Lost())


def test_the_fastest_configuration_is_taken_and_named():
    class Choosy(Correct):
        def prepare(self, operands):
            right = next(iter(super().prepare(operands).forward.values()))

            def fails():
                raise RuntimeError("out of shared memory")

            return Calls({"slow": right, "fast": right, "broken": fails})

    entry = measure(providers=[Choosy()], timer=Clock({"slow": 9.0, "fast": 3.0, "mine": 3.5}))["rows"]["tiny"]
    assert entry["choice"]["forward"] == {"mine": "fast"}
    assert entry["us"]["forward"]["mine"]["median_us"] == 3.5
    assert entry["failed"]["mine"] == {"forward, broken": "RuntimeError: out of shared memory"}


def test_one_that_is_not_installed_is_left_out_with_its_reason():
    class Absent(Correct):
        name, role = "absent", "peer"

        def unavailable(self):
            return "not installed"

        def prepare(self, operands):
            raise AssertionError("was asked all the same")

    results = measure(providers=[Correct(), Absent()])
    assert results["providers"]["absent"]["absent"] == "not installed"
    assert results["rows"]["tiny"]["failed"] == {}


def test_rows_are_told_as_they_come_and_memory_is_freed_between():
    told, clock = [], Clock()
    measure([TINY, DECODE], timer=clock, tell=lambda row, entry: told.append((row.name, len(clock.calls))))
    assert [name for name, _ in told] == ["tiny", "tiny-decode"]
    assert clock.calls.count("free") >= 3
    assert told[0][1] < told[1][1], "the first is told before the second is measured"


def test_bad_arguments_are_refused_before_anything_runs():
    with pytest.raises(ValueError, match="passes must be among forward, called, dA, dB, got 'dC'"):
        measure(passes=("dC",), timer=None)
    with pytest.raises(ValueError, match="repeats must be at least 2"):
        measure(repeats=1, timer=None)


# course bench


def test_list_names_rows_and_providers(capsys):
    assert command.main(["bench", "--list"]) == 0
    shown = capsys.readouterr().out
    for row in [*bench_rows.rows(), *bench_rows.variants()]:
        assert row.name in shown
        assert row.title in shown
    for name in ("torch", "loop", "quack", "tutorial", "dense"):
        assert f"  {name} " in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "nothing"], "got 'nothing'"),
        (["--providers", "nothing"], "got 'nothing'"),
        (["--repeats", "1"], "at least 2"),
        (["--json", "/no/such/folder/x.json"], "folder that exists"),
        (["--passes", "dC"], "--passes must be among forward, called, dA, dB, got 'dC'"),
    ],
)
def test_wrong_usage_is_seen_before_measuring(options, message, capsys):
    assert command.main(["bench", *options]) == command.USAGE
    assert message in capsys.readouterr().err


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["bench"]) == command.CANNOT
    assert "torch sees none" in capsys.readouterr().err


@pytest.fixture
def on_a_gpu(monkeypatch):
    """`course bench` as on a GPU, with tiny rows, the tests' clock and providers that run here."""
    table = {row.name: row for row in (TINY, DECODE)}
    measured = grouped.measure

    def prepare(providers, us=None):
        def here(rows, chosen, **arguments):
            return measured(rows, chosen, **(arguments | {"timer": Clock(us), "device": "cpu"}))

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(bench_rows, "by_name", lambda: table)
        monkeypatch.setattr(known, "providers", lambda: providers)
        monkeypatch.setattr(grouped, "measure", here)
        monkeypatch.setattr(record, "provenance", lambda commit_id: {"gpu": "NVIDIA H200"})

    return prepare


def test_the_command_measures_prints_and_writes(on_a_gpu, capsys, tmp_path):
    on_a_gpu([Correct(), *PEERS, known.Quack()], {"mine": 10.0, "torch": 15.0, "loop": 20.0, "dense": 8.0})
    files = [tmp_path / name for name in ("x.json", "x.png", "roof.png")]
    options = ["--json", str(files[0]), "--plot", str(files[1]), "--roofline", str(files[2]), "--repeats", "3"]
    assert command.main(["bench", *options]) == 0
    shown = capsys.readouterr().out
    assert "quack is left out: quack-kernels is not installed" in shown
    assert "measuring 2 rows by mine, torch, loop, dense" in shown
    assert shown.index("tiny: 40 over 4") < shown.index("tiny-decode: 1 each")
    assert "mine, times faster" in shown
    assert "torch 1.50 (1.50)" in shown
    assert "dense not measured" in shown
    results = record.read(files[0])
    assert results["provenance"] == {"gpu": "NVIDIA H200"}
    assert results["rows"]["tiny"]["us"]["forward"]["torch"]["median_us"] == 15.0
    assert all(path.stat().st_size > 1000 for path in files)


def test_the_command_fails_where_ours_is_wrong(on_a_gpu, capsys):
    on_a_gpu([Correct(spoilt((0, 0), 9.0)), known.Torch()])
    assert command.main(["bench", "--rows", "tiny", "--passes", "forward"]) == command.FAILED
    printed = capsys.readouterr()
    assert "tiny, mine, forward: WrongResult" in printed.err
    assert "! mine failed, forward" in printed.out


def test_nobody_to_measure_is_no_success(on_a_gpu, capsys):
    on_a_gpu([known.Quack()])
    assert command.main(["bench"]) == command.CANNOT
    assert "none of these providers is installed" in capsys.readouterr().err


def test_a_wrong_peer_is_shown_and_is_no_failure(on_a_gpu, capsys):
    peer = Correct(spoilt((0, 0), 9.0))
    peer.name, peer.role = "peer", "peer"
    on_a_gpu([Correct(), peer])
    assert command.main(["bench", "--rows", "tiny", "--passes", "forward"]) == 0
    assert "! peer failed, forward: WrongResult" in capsys.readouterr().out


def test_the_table_marks_the_fastest_and_not_the_ceiling():
    entry = {
        "rate": {"forward": {"mine": 600.4, "torch": 500.0, "dense": 700.0}},
        "host_us": {}, "unsuited": {}, "failed": {},
    }  # fmt: skip
    shown = bench_command.table(TINY, entry, {"mine": "ours", "torch": "peer", "dense": "ceiling", "quack": "peer"})
    line = next(line for line in shown.splitlines() if "forward" in line)
    assert line.split() == ["forward", "600*", "500", "700"]
    assert "quack" not in shown


@pytest.fixture
def grouped_api():
    path = ROOT / "benchmarks" / "grouped_api.py"
    spec = importlib.util.spec_from_file_location("grouped_api", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.by_name = lambda: {"tiny": TINY}
    return module


def test_large_rows_are_measured_back_to_back(on_a_gpu, grouped_api, monkeypatch):
    asked = []

    def measure(rows, chosen, **arguments):
        asked.append((rows, arguments["passes"], type(arguments["timer"])))
        return grouped.measure(rows, chosen, **arguments)

    on_a_gpu([Correct(), known.Torch(), known.CublasLoop()])
    monkeypatch.setattr(grouped_api, "grouped", types.SimpleNamespace(**vars(grouped) | {"measure": measure}))
    small = dataclasses.replace(TINY, name="small", sizes=(8,))
    grouped_api.by_name = lambda: {"tiny": TINY, "small": small, "tiny-decode": DECODE}
    grouped_api.LARGE = TINY.flops
    results = grouped_api.sustained()
    assert asked == [([TINY], ("forward",), grouped.SustainedTimer)]
    assert set(results["rows"]["tiny"]["us"]) == {"forward"}
    assert set(results["rows"]["tiny"]["us"]["forward"]) == {"mine", "torch"}, "a loop is no one product"
    assert {name for name, each in results["providers"].items() if "absent" in each} == {
        config.name for config in SWEPT if config.tile_m >= 128
    }
    assert results["regrets"] == {}
    on_a_gpu([Correct(spoilt((0, 0), 9.0))])
    with pytest.raises(AssertionError, match="tiny, mine, forward: WrongResult"):
        grouped_api.sustained()


def test_a_timer_of_long_runs_is_a_clock_like_the_others(monkeypatch):
    monkeypatch.setattr(grouped.timing, "sustained_us", lambda functions, repeats: (functions, repeats))
    assert grouped.SustainedTimer().interleaved_us({"a": print}, 7) == ({"a": print}, 7)


def test_the_record_refuses_wrong_results_of_ours(on_a_gpu, grouped_api):
    on_a_gpu([Correct(), known.Torch()])
    assert set(grouped_api.rows()["rows"]["tiny"]["us"]["dB"]) == {"mine", "torch"}
    on_a_gpu([Correct(spoilt((0, 0), 9.0)), known.Torch()])
    with pytest.raises(AssertionError, match="tiny, mine, forward: WrongResult"):
        grouped_api.rows()
    on_a_gpu([known.Torch()])
    with pytest.raises(RuntimeError, match="no backend of grouped_mm"):
        grouped_api.rows()


@pytest.mark.gpu
def test_one_row_on_the_gpu():
    row = Row("small", "", (100, 0, 300, 7), 512, 256, "compute")
    results = grouped.measure([row], known.providers(), repeats=5)
    entry = results["rows"]["small"]
    assert entry["failed"] == {}
    present = {name for name, about in results["providers"].items() if "absent" not in about}
    assert set(entry["us"]["forward"]) == present
    assert results["copy_tb_s"] > 0.1
    assert all(us["median_us"] > 0 for by in entry["us"].values() for us in by.values())
