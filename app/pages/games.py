"""The Games page: which of the three games costs most, and which lever helps."""

from app.pages.watch import watch
from app.panels import GAMES


def render() -> None:
    watch(GAMES)
