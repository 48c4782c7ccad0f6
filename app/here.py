"""Where a Streamlit script finds what its process holds: scripts are run anew for every viewer and take no arguments."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from poascope.settings import Settings

if TYPE_CHECKING:
    from app.control import Control
    from app.data import Feed
    from app.desk import Desk
    from app.file import NoControl


@dataclass(frozen=True, slots=True)
class Here:
    settings: Settings
    feed: "Feed"
    control: "Control | NoControl"
    plotly: str
    desk: "Desk"
    file: str = ""  # what is said where a closed file is shown; empty: live


_here: list[Here] = []


def use(here: Here) -> None:
    _here[:] = [here]


def get() -> Here:
    """Raises LookupError when the script was not started by `poascope dash`."""
    if not _here:
        raise LookupError("app: no settings - start the dashboard with poascope dash, not with streamlit run")
    return _here[0]
