"""The Live page: am I in trouble, and since when."""

from app.pages.watch import watch
from app.panels import LIVE


def render() -> None:
    watch(LIVE)
