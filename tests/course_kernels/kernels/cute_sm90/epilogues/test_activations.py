"""Activations in CuTe DSL: every function has a branch of its own. Their values are those of ``test_layer_gpu``."""

import pytest

from course_kernels.kernels.codes import Activation, Function


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """PTX of a kernel that has nothing but the value and the slope of an activation's function."""
    cutlass = pytest.importorskip("cutlass", reason="needs the cutlass extra")
    from cutlass import cute
    from cutlass.base_dsl.compiler import DumpDir

    from course_kernels.kernels.cute_sm90.epilogues.activations import function_and_slope

    @cute.kernel
    def kernel(activation: cutlass.Constexpr, x: cutlass.Float32):
        value, slope = function_and_slope(activation, x)
        cute.printf("{} {}", value, slope)

    @cute.jit
    def launched(activation: cutlass.Constexpr, x: cutlass.Float32):
        kernel(activation, x).launch(grid=(1, 1, 1), block=(1, 1, 1))

    folder = str(tmp_path_factory.mktemp("code"))
    compile_ = cute.compile[cute.GPUArch("sm_90a"), cute.KeepPTX(True), DumpDir(folder)]
    return lambda function: compile_(launched, Activation(function), cutlass.Float32(1.0)).__ptx__


def test_each_function_has_code_of_its_own(compiled):
    codes = [compiled(function) for function in Function]
    assert len(set(codes)) == len(Function)


def test_an_unknown_function_is_refused(compiled):
    with pytest.raises(ValueError, match="an unknown Function: 99"):
        compiled(99)
