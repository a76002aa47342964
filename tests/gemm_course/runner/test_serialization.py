"""Messages between processes: what is sent arrives, and bytes of another form are a ValueError."""

from __future__ import annotations

import json
import os
import struct

import pytest
import torch

from gemm_course.runner import serialization

VALUES = [
    None, True, 3, -(2**70), 0.5, "ü\x00", [], {}, [1, ["a", None]], {"a": {"b": [1.5]}},
    {"t": torch.arange(6, dtype=torch.int32).reshape(2, 3)}, [torch.ones(2, 3).mT, torch.tensor(2.0)],
    torch.empty(0, 4, dtype=torch.float16), torch.tensor([True, False]), torch.ones(3, dtype=torch.bfloat16),
]  # fmt: skip


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_what_is_sent_arrives(value):
    here, there = os.pipe()
    serialization.send(there, value)
    serialization.send(there, "next")
    os.close(there)
    reader = serialization.Reader(here)
    reader.pump()
    first, second = reader.messages()
    assert same(first, value)
    assert second == "next"
    assert reader.next(1.0) is None
    assert reader.closed
    os.close(here)


def tensor(*parts):
    return json.dumps({"__tensor__": parts}).encode()


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"", b""),
        (b"{", b""),
        (b"\xff", b""),
        (b"[" * 100_000, b""),
        (tensor("int8", [3], 3), b"xx"),
        (tensor("int8", [2], 1), b"xx"),
        (tensor("int8", [-1], -1), b""),
        (tensor("int8", [1.0], 1), b"x"),
        (tensor("complex64", [1], 8), b"x" * 8),
        (tensor("int8", 3, 3), b"xxx"),
        (tensor(["int8"], [1], 1), b"x"),
        (tensor("int8", [1]), b"x"),
        (tensor("int8", [0, 2**62, 2**62], 0), b""),
        (tensor("int8", [0, 2**70], 0), b""),
        (tensor("int8", [0] * 100, 0) + b"]", b""),
        (tensor("int8", [1] * 65, 1), b"x"),
    ],
)
def test_bytes_of_another_form_are_no_message(header, body):
    with pytest.raises(ValueError):
        serialization.unpack(header, body)


def test_a_message_larger_than_all_may_be_is_refused_before_it_arrives():
    here, there = os.pipe()
    os.write(there, struct.pack("<QQ", 16, serialization.MAX_BYTES))
    os.close(there)
    reader = serialization.Reader(here)
    reader.pump()
    with pytest.raises(ValueError, match="larger"):
        reader.messages()
    os.close(here)


def test_messages_are_not_too_many(monkeypatch):
    """Each takes memory that its bytes do not show."""
    monkeypatch.setattr(serialization, "MAX_HEADERS", 1 << 16)
    here, there = os.pipe()
    os.write(there, serialization.pack({}) * 65)
    os.close(there)
    reader = serialization.Reader(here)
    reader.pump()
    with pytest.raises(ValueError, match="larger"):
        reader.messages()
    os.close(here)


def test_what_cannot_travel_is_not_sent():
    with pytest.raises(TypeError, match="cannot send a set"):
        serialization.pack({"a": {1}})
    assert not serialization.travels(torch.ones(2, dtype=torch.complex64))
    assert not serialization.travels(torch.ones(2, device="meta"))
    assert serialization.travels(torch.ones([1] * 64))
    assert not serialization.travels(torch.ones([1] * 65))
    assert not serialization.travels(torch.ones(2, 2).to_sparse())
