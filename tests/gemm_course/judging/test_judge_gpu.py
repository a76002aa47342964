"""With a GPU the same checks run on it, too: the interpreter has the first word, then what only the GPU shows."""

from __future__ import annotations

import pytest

import mutants
from course_kernels import runtime
from gemm_course.exercises import manifest
from gemm_course.isolation.landlock import PATIENCE
from gemm_course.judging import isolation_report
from gemm_course.judging import judge as judging
from gemm_course.judging.judge import Judge
from gemm_course.judging.results import NOT_ON_GPU
from gemm_course.judging.untrusted import parse_reply
from gemm_course.notebook import cells as submission
from places import ROOT

ON_GPU = [exercise for exercise in manifest.exercises() if exercise.gpu]
every_exercise = pytest.mark.parametrize("exercise", ON_GPU, ids=[e.name for e in ON_GPU])
pytestmark = pytest.mark.usefixtures("no_second_wall")  # two judges share their processes
(MASKS,) = manifest.find("03")


def source_of(folder, exercise):
    return submission.of_notebook(ROOT / folder / f"{exercise.name}.ipynb", exercise.function)


def mutant(name):
    return mutants.of(MASKS.name)[name].source


class Played(Judge):
    """A judge whose GPU is played by the interpreter; `alter` has its way with what answers, `tried` with trials."""

    def __init__(self, lender):
        super().__init__(manifest.examiner)
        self.lender = lender

    def playing(self, alter=None, tried=None):
        self.alter, self.tried, self.modes, self._gpu_works = alter, tried, [], False
        return self

    def ask(self, mode, request, seconds, cancelled=None):
        if mode != "gpu":
            self.modes.append(mode)
            return super().ask(mode, request, seconds, cancelled)
        outcome = self.lender.ask("run", request, seconds, cancelled)
        self.modes.append(mode if "module" in request else "trial")
        alter = self.alter if "module" in request else self.tried
        return alter(outcome) if alter else outcome


@pytest.fixture(scope="module")
def stage():
    """A judge whose GPU is played; a template has one child at a time, so another judge lends its own."""
    if runtime.mode() == "gpu":
        pytest.skip("there is a GPU: it plays itself")
    with Judge(manifest.examiner) as lender, Played(lender) as judge:
        yield judge


@pytest.fixture
def played(stage, monkeypatch):
    monkeypatch.setattr(judging, "_has_gpu", lambda: True)
    return stage.playing


def test_the_same_inputs_go_to_both(played):
    judge = played()
    result = judge.check(MASKS, source_of("solutions", MASKS))
    assert result.passed, result.text()
    assert sorted(judge.modes) == ["compile", "gpu", "run"]


def test_what_only_the_gpu_gets_wrong_is_told(played):
    def alter(outcome):
        (message,) = (m for m in outcome.messages if m.case == 1)
        for each in message.watched["outputs"]:
            each["buffer"] = each["buffer"] + 1
        return outcome

    result = played(alter).check(MASKS, source_of("solutions", MASKS), compiling=False)
    assert result.status == "failed"
    (tiles,) = (each for each in result.properties if each.name == "tiles")
    assert tiles.message.startswith("right in the interpreter, but on the GPU: ")
    assert "tile (0, 0)" in tiles.message
    assert result.panels


def forged(outcome, *messages):
    """What came back first, and then these messages."""
    return judging.Outcome([*outcome.messages[:1], *map(parse_reply, messages)], ready=True, layouts=outcome.layouts)


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (lambda o: judging.Outcome(o.messages[:1], status=-11, ready=True, layouts=o.layouts), "segmentation fault"),
        (
            lambda o: judging.Outcome(o.messages[:1], timed_out=True, ready=True, layouts=o.layouts),
            f"still running after {PATIENCE * (MASKS.seconds + judging.GPU_S) + judging.request.GRACE_S:.0f} s",
        ),
        (
            lambda o: forged(o, {"case": 99, "value": 1, "watched": {}}),
            "makes no sense",
        ),
        (
            lambda o: forged(o, {"setup_error": "no GPU today"}, {"done": True}),
            "makes no sense",
        ),
    ],
    ids=["crash", "endless", "no question", "forged excuse"],
)
def test_a_gpu_on_which_the_answer_breaks_earns_nothing(played, alter, says):
    judge = played(alter)
    result = judge.check(MASKS, source_of("solutions", MASKS), compiling=False)
    assert result.status == "failed"
    assert judge.modes[-1] == "trial", "whose fault it is was found out"
    failed = [each.message for each in result.properties if each.status == "fail"]
    assert failed
    assert all(says in message and "on the GPU" in message for message in failed)


def broken(outcome):
    return judging.Outcome(outcome.messages[:1], status=-11, ready=True, layouts=outcome.layouts)


@pytest.mark.parametrize(
    ("alter", "tried", "says"),
    [
        (lambda o: judging.Outcome(not_started="nothing forks\nhere"), None, "nothing forks here"),
        (lambda o: judging.Outcome(setup_error="RuntimeError: CUDA error 304"), None, "RuntimeError: CUDA error 304"),
        (lambda o: judging.Outcome(status=-9), None, "ended with status -9"),
        (broken, lambda o: judging.Outcome(setup_error="OSError: not here"), "OSError: not here"),
        (broken, lambda o: judging.Outcome(ready=True, timed_out=True), "it did not end"),
    ],
    ids=["no process", "CUDA does not start", "killed early", "trial does not start", "trial does not end"],
)
def test_a_gpu_that_no_kernel_can_use_costs_nobody_points(played, alter, tried, says):
    judge = played(alter, tried)
    result = judge.check(MASKS, source_of("solutions", MASKS), compiling=False)
    assert result.passed, result.text()
    assert result.message.startswith(f"{NOT_ON_GPU}: ")
    assert result.message.endswith(says)
    assert judge.modes.count("trial") == (tried is not None)


def test_a_gpu_that_fails_once_is_tried_again_for_the_next_answer_and_one_that_works_is_not(played):
    trials = [judging.Outcome(setup_error="out of memory"), judging.Outcome([parse_reply({"case": 0})], ready=True)]
    judge = played(broken, lambda _: trials.pop(0))
    results = [judge.check(MASKS, source_of("solutions", MASKS), compiling=False) for _ in range(3)]
    assert results[0].passed
    assert results[0].message == f"{NOT_ON_GPU}: out of memory"
    assert [each.status for each in results[1:]] == ["failed", "failed"], "what breaks there breaks by itself"
    assert judge.modes.count("trial") == 2


def test_a_gpu_is_not_tried_for_an_answer_that_the_interpreter_rejects(played):
    judge = played(broken, lambda o: judging.Outcome(setup_error="OSError: not here"))
    wrong = judge.check(MASKS, mutant("no_other"), compiling=False)
    assert (wrong.status, wrong.message) == ("failed", ""), wrong.text()
    assert "trial" not in judge.modes


def test_neither_interpreter_nor_gpu_is_told(played, monkeypatch):
    monkeypatch.setattr(judging.runtime, "interpreter_problem", lambda: "old")
    judge = played(lambda o: judging.Outcome(setup_error="no GPU today"))
    result = judge.check(MASKS, source_of("solutions", MASKS), compiling=False)
    assert (result.status, result.points) == ("unchecked", 0)
    assert result.message == "this cannot be checked here: old. And no answer runs on the GPU: no GPU today"


def test_an_interpreter_that_does_not_work_is_told_where_nothing_stands_in(stage, monkeypatch):
    text = "only 0-dimensional arrays can be converted to Python scalars"
    error = {"kind": "exception", "type": "TypeError", "text": text, "line": 7, "code": "", "program": [0]}
    reply = parse_reply({"case": 0, "error": error})
    monkeypatch.setattr(stage, "ask", lambda *_: judging.Outcome([reply], ready=True))
    for problem, status, says in (
        ("install a newer one", "unchecked", "this cannot be checked here: install a newer one"),
        (None, "failed", text),
    ):
        monkeypatch.setattr(judging.runtime, "interpreter_problem", lambda problem=problem: problem)
        result = stage.check(MASKS, source_of("solutions", MASKS), compiling=False)
        assert (result.status, result.points) == (status, 0)
        assert says in result.message


def test_a_gpu_stands_in_for_an_interpreter_that_does_not_work(played, monkeypatch):
    monkeypatch.setattr(judging.runtime, "interpreter_problem", lambda: "old")
    judge = played()
    assert judge.check(MASKS, source_of("solutions", MASKS)).passed
    assert sorted(judge.modes) == ["compile", "gpu"]
    result = judge.check(MASKS, mutant("no_other"))
    assert result.status == "failed"


def test_the_interpreter_has_the_first_word(played):
    result = played().check(MASKS, mutant("no_other"), compiling=False)
    assert result.status == "failed"
    assert "on the GPU" not in result.text()


def test_a_stub_says_todo_and_nothing_of_a_gpu(played):
    result = played().check(MASKS, source_of("exercises", MASKS))
    assert (result.status, result.properties) == ("todo", [])


# ---- on a GPU

SEEDS = range(3)  # some mistakes show with some inputs only


def told(judge, *results):
    """Everything that is known where a check on a GPU comes out otherwise than it should."""
    problem = isolation_report.try_gpu(judge.ask)
    tried = f"{problem}; {isolation_report.find_layer(judge.ask, problem)}" if problem else "a kernel runs, confined"
    return "\n\n".join([*(f"seed {each.seed}: {each.text()}" for each in results), f"the GPU: {tried}"])


def rejected_by_none(judge, exercise, source):
    """The results of an answer that no seed rejects; nothing if one does."""
    results = []
    for seed in SEEDS:
        results.append(judge.check(exercise, source, seed, compiling=False))
        if results[-1].status == "failed":
            return []
    return results


@pytest.fixture
def gpu_first(monkeypatch):
    """Nobody asks the interpreter."""
    monkeypatch.setattr(judging.runtime, "interpreter_problem", lambda: "not asked")


@pytest.mark.gpu
@every_exercise
def test_the_solution_passes_on_a_gpu(exercise):
    with Judge(manifest.examiner) as judge:
        results = [judge.check(exercise, source_of("solutions", exercise)) for _ in range(2)]
        assert all(result.passed and not result.message for result in results), told(judge, *results)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu_first")
@every_exercise
def test_the_solution_passes_where_only_a_gpu_is_asked(exercise):
    with Judge(manifest.examiner) as judge:
        results = [judge.check(exercise, source_of("solutions", exercise), seed, compiling=False) for seed in SEEDS]
        assert all(result.passed and not result.message for result in results), told(judge, *results)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu_first")
@every_exercise
def test_mutants_are_rejected_where_only_a_gpu_is_asked(exercise, monkeypatch):
    with Judge(manifest.examiner) as judge:
        right = judge.check(exercise, source_of("solutions", exercise), compiling=False)
        assert right.passed, told(judge, right)
        accepted = {}
        for each in mutants.of(exercise.name).values():
            if each.no_trace:
                continue
            # A kernel without an end is waited for as long as a GPU may take.
            monkeypatch.setattr(judging, "GPU_S", 4.0 if "still running" in each.says else 20.0)
            results = rejected_by_none(judge, exercise, each.source)
            if results:
                accepted[each.name] = results[-1]
        # pytest cuts off a list, so the text has all names.
        names = f"accepted: {', '.join(accepted)}"
        assert not accepted, f"{names}\n\n{told(judge, *accepted.values())}"
        again = judge.check(exercise, source_of("solutions", exercise), compiling=False)
        assert again.passed, told(judge, again)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["endless", "store_unmasked"])
def test_after_a_wrong_answer_a_right_one_passes_on_a_gpu(name):
    with Judge(manifest.examiner) as judge:
        wrong = judge.check(MASKS, mutant(name))
        result = judge.check(MASKS, source_of("solutions", MASKS))
        assert wrong.status == "failed", told(judge, wrong)
        assert (result.passed, result.message) == (True, ""), told(judge, result)
