"""Errors a person reads. `subject: value - reason or next step`; the exit code tells a script which kind it was."""


class PoascopeError(Exception):
    """Something failed (exit 1)."""

    exit_code = 1


class Misconfigured(PoascopeError):
    """A setting, flag or file is wrong; trying again changes nothing (exit 2)."""

    exit_code = 2


class Unreachable(PoascopeError):
    """Something poascope depends on does not answer; trying again may help (exit 3)."""

    exit_code = 3
