"""What Dynamo's file discovery needs of the kernel."""

import pytest

from poascope.errors import PoascopeError
from testbed.discovery import require_watches


def test_too_few_inotify_instances_are_told_with_the_way_out() -> None:
    """A router without them overlooks workers in silence; one is always there, a million never."""
    require_watches(1)
    with pytest.raises(PoascopeError, match=r"inotify: \d+ instances left of \d+, .* needs 1000000 - .* sysctl -w"):
        require_watches(1_000_000)
