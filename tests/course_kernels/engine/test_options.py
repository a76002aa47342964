"""Options of a launch as strings, which torch's operators take."""

from __future__ import annotations

import pytest

from course_kernels import GemmConfig
from course_kernels.config import LaunchOptions
from course_kernels.engine.options import Options, decode_launch, encode_launch


def test_configurations_survive_the_operator():
    launches = (LaunchOptions(), LaunchOptions(304), LaunchOptions(None, "dynamic"), LaunchOptions(7, "round_robin"))
    configs = (GemmConfig(), GemmConfig(16, 32, 64, 8, 2, 4, 1, 2, "dynamic"), GemmConfig(programs=7, num_xcds=8))
    for config in (None, *configs, *launches):
        for num_sms in (None, 100):
            assert decode_launch(encode_launch(Options(config=config, num_sms=num_sms))) == (config, num_sms)
    with pytest.raises(ValueError, match="config must name the"):
        decode_launch("64 64")
