"""What can go wrong with a daemon under test, each with what to do about it."""

from __future__ import annotations


class KitFault(Exception):
    """Something is wrong with the test or where it runs, and not with what is tested."""


class WrongRule(KitFault, ValueError):
    """What a test said of an answer is no rule of a script; the message is the script's own complaint."""


class NotScripted(KitFault):
    """No model is answered by the test's own words, so what is said changes nothing, and what is asked is not told."""


class NoSidecar(KitFault):
    """`python -m sidecar` can't be run by this interpreter."""


class NotReady(KitFault):
    """The daemon ended, or said nothing, before it took connections; the message has its log."""


class FolderInUse(KitFault):
    """Another daemon runs in the folder that was given."""


class SocketPathTooLong(KitFault):
    """The kernel takes no socket with a path of this length."""


class NotAsked(AssertionError):
    """The provider was not asked in time, which is a failure of what is tested, or of what the test expects of it."""


class LogIncomplete(KitFault):
    """Not all refusals are in the log, so a list of them would be wrong."""


class NotAnswering(KitFault):
    """The daemon runs, and doesn't answer, or doesn't end."""
