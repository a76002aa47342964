"""What a digest of code is sensitive to, and what it is not."""

from __future__ import annotations

import pytest

from course_kernels import provenance

ONE = '''"""The first module."""

from __future__ import annotations

import math

__all__ = ["area"]

SCALE = 2  # in metres


def area(r):
    """Of a circle."""
    return SCALE * math.pi * r**2


class Shape:
    """Anything."""

    def name(self):
        # a comment
        return f"{self.kind:>{SCALE}}"
'''
TWO = "def other(x, y):\n    return x + y\n"
PATTERNS = ["package/*.py"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that writes files of a package and returns the digest of some of them."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)

    def digest(patterns=PATTERNS, **sources):
        for path in (tmp_path / "package").glob("*.py"):
            path.unlink()
        for name, text in ({"one": ONE, "two": TWO} | sources).items():
            path = tmp_path / "package" / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return provenance.digest(patterns)

    return digest


def test_a_digest_is_the_same_on_every_machine_and_in_every_version_of_python(package):
    assert package() == package() == "abedbe3df0e164f4"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # in metres", ""),
        ('"""The first module."""\n', ""),
        ('    """Of a circle."""\n', "    '''Of any circle.'''\n"),
        ('    """Anything."""\n\n', ""),
        ("import math\n", "import math\nimport os\n"),
        ("\n    return SCALE * math.pi * r**2", "\n\n    return (\n        SCALE * math.pi * (r ** 2)\n    )"),
        ("        # a comment\n", "        import sys\n\n"),
        ('__all__ = ["area"]\n', '__all__ = ["Shape", "area"]\n'),
    ],
)
def test_comments_docstrings_formatting_and_imports_do_not_count(package, old, new):
    assert old in ONE
    assert package(one=ONE.replace(old, new)) == package()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 2", "SCALE = 3"),
        ("SCALE = 2", "SCALE = 2.0"),
        ("SCALE = 2", "SCALE: int = 2"),
        ("def area(r)", "def area(d)"),
        ("r**2", "r**3"),
        ("def area(r):", "@staticmethod\ndef area(r):"),
        (":>{", ":<{"),
        ("    def name", "    async def name"),
    ],
)
def test_code_counts(package, old, new):
    assert old in ONE
    assert package(one=ONE.replace(old, new)) != package()


def test_a_definition_can_move_within_a_file_and_between_files(package):
    before = package()
    constant, rest = "SCALE = 2  # in metres\n", ONE.replace("SCALE = 2  # in metres\n", "")
    assert package(one=rest + constant) == before
    assert package(one=rest, two=TWO + constant) == before
    assert package(one=rest) != before, "but it cannot leave the set"
    assert package(three=ONE) != before, "nor be there twice"


def test_only_files_that_match_count(package, tmp_path):
    one = ["package/one.py"]
    assert package(one, two="x = 1\n") == package(one, two="x = 2\n") != package(PATTERNS)
    assert package(["package/o*.py", "package/one.py"]) == package(one), "a file counts once"
    assert [path.name for path in provenance.files(PATTERNS)] == ["one.py", "two.py"]


def test_files_that_are_not_python_count_byte_by_byte(package, tmp_path):
    (tmp_path / "package").mkdir()
    table = tmp_path / "package" / "table.json"
    digests = set()
    for text in ("{}", "{} ", '{"a": 1}'):
        table.write_text(text)
        digests.add(package(["package/*"]))
    table.rename(table.with_name("other.json"))
    assert len(digests | {package(["package/*"]), package()}) == 5, "their names count, too"


def test_a_pattern_that_matches_nothing_is_refused(package):
    for patterns in (["package/gone.py"], [*PATTERNS, "package/*.toml"]):
        with pytest.raises(ValueError, match=f"the pattern '{patterns[-1]}' matches no file".replace("*", r"\*")):
            package(patterns)


def test_the_installed_packages_are_found():
    assert provenance.ROOT.joinpath("course_kernels", "provenance.py") in provenance.files(["course_kernels/*.py"])
    assert provenance.digest(["course_kernels/kernels/*.py"]) != provenance.digest(["course_kernels/kernels/**/*.py"])
