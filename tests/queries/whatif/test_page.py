import doctest
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "whatif.md"


def test_every_example_on_the_page_runs() -> None:
    """docs/whatif.md: each example gives what it says."""
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.failed == 0 and result.attempted >= 8
