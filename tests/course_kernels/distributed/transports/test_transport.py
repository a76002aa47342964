"""The list of transports: each has what ``ExpertParallel`` calls. ``test_expert_parallel`` tests what they do."""

from __future__ import annotations

import inspect

import pytest

from course_kernels.distributed.transports import TRANSPORTS
from course_kernels.distributed.transports.transport import Direct, Transport


@pytest.mark.parametrize("name", TRANSPORTS)
def test_it_has_all_methods(name):
    transport = TRANSPORTS[name]
    asked = Direct if issubclass(transport, Direct) else Transport
    methods = {method for method in dir(asked) if not method.startswith("_")}
    assert methods >= {"of", "plan", "scatter", "collect"}
    for method in methods:
        wanted, found = (inspect.signature(getattr(each, method)).parameters for each in (asked, transport))
        assert [*found][: len(wanted)] == [*wanted]
        assert not inspect.isabstract(transport)


@pytest.mark.parametrize("name", TRANSPORTS)
@pytest.mark.parametrize("max_tokens", [0, True, 2.5])
def test_wrong_limits_are_refused(name, max_tokens):
    with pytest.raises(ValueError, match=f"max_tokens must be .*, got {max_tokens}"):
        TRANSPORTS[name].of(None, 4, max_tokens)


def test_one_is_between_memories():
    assert [name for name, transport in TRANSPORTS.items() if issubclass(transport, Direct)] == ["symmetric"]
