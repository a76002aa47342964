"""Tables and sentences about the layer of experts, on one GPU and on several, from their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from course_kernels.bench import record
from gemm_course.lessons import layer_records
from table_parts import gpu_of, markdown, number, provenance_of

PASSES = {"forward": "forward", "forward and backward": "step"}
PEERS = {"transformers": "transformers' operations", "liger": "Liger's layer"}
WAYS = {
    "by hand, torch's products": "by hand, torch's products",
    "by hand, our products": "by hand, ours",
    "all_to_all": '`"all_to_all"`',
    "symmetric": '`"symmetric"`',
    "symmetric, in a graph": "in a graph",
    "the layer alone, on the rows that arrive, in a graph": "no exchange",
    "one GPU, all experts, its tokens, in a graph": "one GPU",
}
SCALED = dict(model="qwen3-30b-a3b", tokens=16384, routing="uniform")  # the batch of sentences


def listing(parts: Iterable[str]) -> str:
    """Words with commas, and "and" before the last."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


NOT_RECORDED = "Not recorded yet."


def recorded(name: str) -> bool:
    """Whether there is such a record."""
    return (record.RESULTS / f"{name}.json").exists()


def picture() -> str:
    """The README's picture: of the layer, once it has a record, and until then of its products."""
    if recorded("moe"):
        return (
            "Blue: this library. Orange: [Liger](https://github.com/linkedin/Liger-Kernel). Grey line: "
            "transformers.\n\n"
            '<img src="docs/layer.png" width="640" alt="Times as fast as transformers\' operations: the layer in this '
            "library and in Liger, forward, and forward and backward, on layers of published models; beside them the "
            'products alone">'
        )
    return (
        "Each mark is one product of a published model's layer. Blue: this library. Orange:\n"
        "[QuACK](https://github.com/Dao-AILab/quack), forward only. Hollow: 512 tokens; filled: 4,096.\n\n"
        '<img src="docs/zoo.png" width="640" alt="Times as fast as torch\'s grouped_mm: this library and QuACK, on '
        'layers of published models">'
    )


def layer_table() -> str:
    """Each recorded layer against its own products and its peers."""
    if not recorded("moe"):
        return NOT_RECORDED
    measured = record.load("moe")
    rows = []
    for row in measured["rows"]:
        us, cells = row["us"], []
        for part in PASSES.values():
            ratios = [us[f"products {part}"] / us[f"graph {part}"], *(gain(row, peer, part) for peer in PEERS)]
            rate = layer_records.flops(row, part) / us[f"ours {part}"] / 1e6
            cells += [number(rate), *("–" if ratio is None else f"{ratio:.2f} ×" for ratio in ratios)]
        bytes_kept = [row["memory"].get(way, {}).get("kept") for way in ("ours", *PEERS)]
        cells += [number(each and each / row["tokens"] / 1e3) for each in bytes_kept]
        rows.append([layer_records.title(row), *cells])
    over = ["over its products", "over transformers", "over Liger"]
    titles = ["forward", *over, "step", *over, "kept", "transformers'", "Liger's"]
    table = markdown(f"{gpu_of(measured)}, bfloat16", titles, rows)
    note = (
        "Forward and step: TFLOP/s of the layer, as called, and how many times as fast it is. Over its products: both "
        "in CUDA graphs; at 1.00 × everything around the products would be free. Kept: kB a token for the backward."
    )
    return f"{table}\n\n{note} {provenance_of(measured)}"


def forward_table() -> str:
    """How many times as fast as its products and its peers the layer's forward is, by model and tokens."""
    if not recorded("moe_forward"):
        return NOT_RECORDED
    measured = record.load("moe_forward")
    names = {"products": "its products", "transformers": "transformers", "flashinfer": "FlashInfer"}
    gains = {name: layer_records.forward_gains(measured, peer) for peer, name in names.items()}
    tokens = sorted({row["tokens"] for row in measured["rows"]})
    rows = [
        [f"{model}, over {name}", *(f"{found[model][each]:.2f} ×" if each in found[model] else "–" for each in tokens)]
        for model in gains["its products"]
        for name, found in gains.items()
        if model in found
    ]
    titles = [f"{each:,} token{'s' * (each > 1)}" for each in tokens]
    return f"{markdown(f'{gpu_of(measured)}, bfloat16', titles, rows)}\n\n{provenance_of(measured)}"


def gain(row: Mapping, peer: str, part: str) -> float | None:
    """How many times as fast as a peer the layer is, both as called; None where the peer was not measured."""
    us = layer_records.peer_us(row["us"], peer, part)
    return us and us / row["us"][f"ours {part}"]


def extent(values: Iterable[float], form: str = ".1f") -> str:
    """The least and the largest; one number if they are written alike."""
    values = list(values)
    return " to ".join(dict.fromkeys(f"{end:{form}}" for end in (min(values), max(values))))


def kept_over(peer: str, measured: Mapping) -> list[float]:
    """The bytes that the layer keeps for the backward over those that a peer keeps, of each row with both."""
    memory = [row["memory"] for row in measured["rows"] if f"{peer} step" in row["us"]]
    return [each["ours"]["kept"] / each[peer]["kept"] for each in memory]


def layer_gain() -> str:
    """A small table: what the layer gains over its peers, over all recorded layers; nothing without a record."""
    if not recorded("moe"):
        return ""
    measured = record.load("moe")
    rows = []
    for peer, name in PEERS.items():
        trained = [row for row in measured["rows"] if f"{peer} step" in row["us"]]
        ratios = [[gain(row, peer, part) for row in trained] for part in PASSES.values()]
        if all(ratios):
            speeds = [f"{extent(each)} times as fast" for each in ratios]
            rows.append([name, *speeds, f"{extent(kept_over(peer, measured), '.0%')} of its bytes"])
    with_peers = [row for row in measured["rows"] if "transformers step" in row["us"]]
    models = len({row["model"] for row in with_peers})
    tokens = listing(f"{each:,}" for each in sorted({row["tokens"] for row in with_peers}))
    return (
        f"{markdown('beside', [*PASSES, 'kept for the backward'], rows)}\n\n"
        f"{len(with_peers)} layers of {models} models with {tokens} tokens, bfloat16, on an {gpu_of(measured)}: "
        "[all numbers](benchmarks.md#The-layer-of-experts)."
    )


def training_gain() -> str:
    """A sentence: a training step of a whole model on the layer over the same on transformers' experts; nothing without
    a record."""
    if not recorded("moe_training"):
        return ""
    measured = record.load("moe_training")
    gains = []
    for row in measured["rows"]:
        ours, theirs = (row["tokens_per_second"][way] for way in ("ours", "transformers"))
        gains.append(f"{ours / theirs:.2f} times as fast with {row['sequences'] * row['length']:,} tokens")
    layers = measured["extents"]["num_hidden_layers"]
    return (
        f"A training step of a whole model, {layers} layers of Qwen3-30B-A3B's extents in transformers, with\n"
        f"attention, norms and AdamW, is {listing(gains)} (bfloat16, one {gpu_of(measured)}):\n"
        "the layer of experts is a part of it. " + provenance_of(measured)
    )


def parallel_table() -> str:
    """Milliseconds of each recorded layer over several GPUs."""
    if not (records := layer_records.parallel_records()):
        return NOT_RECORDED
    cells: dict[str, dict[str, str]] = {}
    for row in layer_records.parallel_rows():
        if row["way"] in WAYS:
            zipf = " (Zipf)" if row["routing"] == "zipf" else ""
            title = f"{row['model']}, {row['ranks']} × {row['tokens']:,} tokens{zipf}"
            both = row["both_us"] and f" / {number(row['both_us'] / 1e3)}"
            cells.setdefault(title, {})[row["way"]] = f"{number(row['forward_us'] / 1e3)}{both or ''}"
    rows = [[title, *(found.get(way, "–") for way in WAYS)] for title, found in cells.items()]
    note = "Forward / forward and backward of the slowest GPU. The last three are in a graph, the others as called."
    gpus = listing(dict.fromkeys(f"{gpu_of(each)}s" for each in records))
    table = markdown(f"ms on {gpus}", WAYS.values(), rows)
    sources = [f"{each['rows'][0]['ranks']} GPUs: {provenance_of(each)}" for each in records]
    return f"{table}\n\n{note} {' '.join(sources)}"


def parallel_gain() -> str:
    """A sentence: a training step of a layer on several GPUs, both transports over the same by hand; nothing without a
    record."""
    if not (records := layer_records.parallel_records()):
        return ""
    gains: dict[int, list[str]] = {}
    for ranks in sorted({row["ranks"] for row in layer_records.parallel_rows()}):
        us = {
            row["way"]: row["both_us"]
            for row in layer_records.parallel_rows()
            if (SCALED | dict(ranks=ranks)).items() <= row.items()
        }
        by_hand = us["by hand, torch's products"]
        gains[ranks] = [f"{by_hand / us[way]:.1f}" for way in ("all_to_all", "symmetric")]
    gpus, default, symmetric = (listing(each) for each in (map(str, gains), *zip(*gains.values(), strict=True)))
    return (
        f"On {gpus} {gpu_of(records[0])}s, a {SCALED['model']} layer ({SCALED['tokens']:,} tokens each) trains\n"
        f"{default} times as fast as [by hand](site/benchmarks.md#The-layer-on-several-GPUs)\n"
        f'[with `ep=`](site/library.md#on-several-gpus), {symmetric} over `"symmetric"`.'
    )
