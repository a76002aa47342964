"""Where things are in the checkout, for tests."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = ROOT / "tests" / "gemm_course" / "exercises" / "mutants"
ALTERNATIVES = MUTANTS.with_name("alternatives")  # right answers, written otherwise than the solutions
