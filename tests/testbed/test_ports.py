import os
import socket
from pathlib import Path

import pytest

from poascope.errors import PoascopeError
from testbed.ports import listeners, require_free, taken


def test_a_taken_port_is_named_with_its_process() -> None:
    """The message says which port, which process by name and pid, and offers a base whose ports are free."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(PoascopeError) as refused:
            require_free([port])
        name = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
        assert f"{port} by {name} (pid {os.getpid()})" in str(refused.value)
        assert "--port-base " in str(refused.value)
        assert listeners()[port] == os.getpid()
    assert taken([port]) == []
    require_free([port])
