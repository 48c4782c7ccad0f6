"""Which target speaks of which deployment."""

import pytest

from collectors.metrics import parse_series, parse_text
from collectors.targets import Targets

BLOCKS = 'dynamo_frontend_model_kv_cache_block_size{model="m"} 16\n'
NAMED = 'dynamo_component_requests_total{dynamo_namespace="prod",worker_id="ff"} 3\n'


def fed(**bodies: str) -> Targets:
    targets = Targets()
    for target, body in bodies.items():
        targets.feed(10, target, *parse_series(parse_text(body)))
    return targets


def test_labels_name_the_deployment_and_routers_tie_the_rest() -> None:
    """A target whose labels name a namespace belongs there; one that names none belongs to its router's, or to the only one."""
    targets = fed(worker=NAMED, frontend=BLOCKS)
    assert targets.of("prod", alone=False, tied=[]) == {"worker"}
    assert targets.of("prod", alone=False, tied=["frontend", None]) == {"worker", "frontend"}
    assert targets.of("staging", alone=False, tied=[]) == set()
    assert targets.of("staging", alone=True, tied=[]) == {"frontend"}


def test_block_size_and_model_are_what_frontends_say() -> None:
    """One model is its name, several are none; before a frontend was read nothing is assumed."""
    targets = fed(a=BLOCKS, b=BLOCKS.replace('"m"', '"n"'), c=NAMED)
    assert targets.block_tokens({"a"}) == 16 and targets.block_tokens({"c"}) is None
    assert targets.model({"a"}) == "m" and targets.model({"a", "b"}) is None and targets.model({"c"}) is None


def test_targets_that_are_gone_are_forgotten() -> None:
    """What was not read since a while says nothing any more."""
    targets = fed(a=BLOCKS)
    targets.forget(11)
    assert targets.of("prod", alone=True, tied=[]) == set() and targets.model({"a"}) is None


def test_a_namespace_is_known_by_its_label() -> None:
    """1.x writes the namespace my-ns as my_ns into its labels: its metrics belong to it all the same."""
    targets = fed(worker=NAMED.replace("prod", "my_ns"))
    assert targets.of("my-ns", alone=False, tied=[]) == {"worker"} == targets.of("my_ns", alone=False, tied=[])


@pytest.mark.parametrize("size", ["+Inf", "-Inf", "NaN", "1e308", "-16", "0", "1e6"])
def test_an_impossible_block_size_is_none(size: str) -> None:
    """What no block can be is not taken for its size, and raises nothing."""
    assert fed(a=BLOCKS.replace("16", size)).block_tokens({"a"}) is None
