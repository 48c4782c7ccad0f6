import doctest
import re
from pathlib import Path

from queries.estimators.anarchy import Lost

PAGE = Path(__file__).parents[2] / "docs" / "estimators.md"


def test_every_example_on_the_page_runs() -> None:
    """docs/estimators.md: each example gives what it says, and there is one for each estimator module."""
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.failed == 0
    assert result.attempted >= 20


def test_the_page_names_each_part_of_the_lost_seconds() -> None:
    """The table has every part that the split has, and no other."""
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.M)) == set(Lost.__slots__)
