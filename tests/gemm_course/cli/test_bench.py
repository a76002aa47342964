"""`course bench`: lists, refuses wrong usage, measures, prints and writes."""

from __future__ import annotations

import pytest
import torch

from bench_stand_ins import DECODE, TINY, Correct, measured_here, spoilt
from clock import Clock
from course_kernels.bench import providers as known
from course_kernels.bench import record, zoo
from course_kernels.bench import rows as bench_rows
from gemm_course.cli import app as command
from gemm_course.cli import bench as bench_command
from gemm_course.cli import exit_codes

PEERS = [known.Torch(), known.CublasLoop(), known.Dense()]


def test_list_names_rows_and_providers(capsys):
    assert command.main(["bench", "--list"]) == 0
    shown = capsys.readouterr().out
    for row in [*bench_rows.rows(), *bench_rows.variants()]:
        assert row.name in shown
        assert row.title in shown
    for name in ("torch", "loop", "quack", "tutorial", "dense"):
        assert f"  {name} " in shown
    for model in zoo.MODELS:
        assert f"  {model.name} " in shown
        assert model.source in shown


def test_list_of_the_zoo_has_the_compact_set_and_the_choice_among_backends(capsys):
    assert command.main(["bench", "--list", "--zoo"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {row.name} " in shown for row in zoo.compact())
    assert "  equal12 " not in shown
    assert "  auto " in shown
    assert "  tutorial " not in shown


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (["--zoo", "dbrx"], zoo.rows(["dbrx"], (64, 512, 4096), ["zipf"])),
        (["--tokens", "1", "7", "--zoo", "gpt-oss"], zoo.rows(["gpt-oss"], (1, 7), ["zipf"])),
        (["--zoo", "--routing", "half-cold", "random"], zoo.rows(None, (64, 512, 4096), ["half-cold", "random"])),
    ],
)
def test_rows_of_the_zoo_are_chosen(options, rows, capsys):
    assert command.main(["bench", "--list", *options]) == 0
    listed = capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]
    assert [line.split()[0] for line in listed] == [row.name for row in rows]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "nothing"], "got 'nothing'"),
        (["--providers", "nothing"], "got 'nothing'"),
        (["--repeats", "1"], "at least 2"),
        (["--json", "/no/such/folder/x.json"], "--json /no/such/folder/x.json: there is no folder /no/such/folder"),
        (["--zoo", "mixtral-7x8b"], "did you mean mixtral-8x7b"),
        (["--zoo", "--routing", "even"], "got 'even'"),
        (["--zoo", "--tokens", "0"], "tokens must be at least 1"),
        (["--zoo", "--providers", "tutorial"], "got 'tutorial'"),
        (["--zoo", "dbrx", "--rows", "equal12"], "give one of them"),
        (["--tokens", "64"], "--zoo, which is not given"),
        (["--passes", "dC"], "--passes must be among forward, called, dA, dB, step, got 'dC'"),
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

    def prepare(providers, us=None):
        measured_here(monkeypatch, us)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(bench_rows, "by_name", lambda: table)
        monkeypatch.setattr(known, "providers", lambda: providers)
        monkeypatch.setattr(known, "zoo", lambda: providers)
        monkeypatch.setattr(zoo, "compact", lambda: [TINY])
        monkeypatch.setattr(record, "provenance", lambda: {"gpu": "NVIDIA H200"})

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


def test_the_zoo_is_measured_with_its_step(on_a_gpu, capsys, tmp_path):
    on_a_gpu([Correct(), known.Torch()], {"mine": 10.0, "torch": 15.0})
    assert command.main(["bench", "--zoo", "--json", str(tmp_path / "zoo.json"), "--repeats", "3"]) == 0
    shown = capsys.readouterr().out
    assert "measuring 1 row by mine, torch" in shown
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line}
    assert lines["peak"] == ["MiB", "3", "3"]
    assert "fwd + bwd is timed as a CUDA graph" in shown
    assert "fwd + bwd torch 1.50 (1.50)" in shown
    entry = record.read(tmp_path / "zoo.json")["rows"]["tiny"]
    assert list(entry["us"]) == ["forward", "dA", "dB", "step"]
    assert entry["peak_bytes"] == {"mine": 3 * 2**20, "torch": 3 * 2**20}


def test_the_command_fails_where_ours_is_wrong(on_a_gpu, capsys):
    on_a_gpu([Correct(spoilt((0, 0), 9.0)), known.Torch()])
    assert command.main(["bench", "--rows", "tiny", "--passes", "forward"]) == exit_codes.FAILED
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


class Large(Correct):
    """A peer that runs out of memory."""

    name, role = "large", "peer"

    def __init__(self, error):
        super().__init__()
        self.error = error

    def prepare(self, operands):
        raise self.error


def test_a_row_that_runs_out_of_memory_is_shown_with_its_reason_and_is_no_failure(on_a_gpu, capsys, tmp_path):
    large = Large(torch.OutOfMemoryError("Tried to allocate 14.00 GiB"))
    large.role = "ours"
    on_a_gpu([Correct(), large])
    assert command.main(["bench", "--zoo", "--json", str(tmp_path / "zoo.json")]) == 0
    shown = capsys.readouterr().out
    assert "  large out of memory, prepare: OutOfMemoryError: Tried to allocate 14.00 GiB\n" in shown
    assert "Out of memory, so not measured:\n  tiny: large (prepare)\n" in shown
    stored = record.read(tmp_path / "zoo.json")
    reason = {"large": {"prepare": "OutOfMemoryError: Tried to allocate 14.00 GiB"}}
    assert stored["rows"]["tiny"]["out_of_memory"] == reason
    assert "unmeasured" not in stored


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: an illegal memory access"), KeyboardInterrupt()])
def test_what_was_measured_before_an_interruption_is_written(on_a_gpu, monkeypatch, capsys, tmp_path, error):
    class Lost(Correct):
        def prepare(self, operands):
            if operands.sizes == DECODE.sizes:
                monkeypatch.setattr(Clock, "settle", ends)
            return super().prepare(operands)

    def ends(clock):
        raise error

    on_a_gpu([Lost()])
    with pytest.raises(type(error)):
        bench_command.run(json=tmp_path / "x.json", passes=["forward"])
    stored = record.read(tmp_path / "x.json")
    assert list(stored["rows"]) == ["tiny"]
    assert stored["unmeasured"] == ["tiny-decode"]
    assert stored["rows"]["tiny"]["us"]["forward"]["mine"]["median_us"] == 10.0
