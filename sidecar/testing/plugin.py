"""The pytest plugin, which pytest finds by itself once the package is installed.

    sidecar_daemon           a daemon of its own for each test
    sidecar_daemon_factory   starts more, or one with other settings: `sidecar_daemon_factory(callers=["miser"])`
    sidecar_shared_daemon    one daemon for all tests that ask for it, told anew what to answer by each of them
    sidecar_settings         what all of these are started with; a `conftest.py` may define it anew (scope "session")

Where a test fails, the end of its daemons' logs is in its report, of the
shared one only what it has written since this test began. This module is read
in every run of pytest where the package is installed, so it imports the rest
only when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sidecar.testing.daemon import Daemon

_of_test: pytest.StashKey[list[Daemon]] = pytest.StashKey()


@pytest.fixture(scope="session")
def sidecar_settings() -> Mapping[str, Any]:
    """Keywords of `sidecar.testing.daemon.spawned`."""
    return {}


@pytest.fixture
def sidecar_daemon_factory(
    request: pytest.FixtureRequest, sidecar_settings: Mapping[str, Any]
) -> Iterator[Callable[..., Daemon]]:
    """Each call starts a daemon with these settings over `sidecar_settings`; all are killed behind the test."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(_spawned(request.node, {**sidecar_settings, **settings}))


@pytest.fixture
def sidecar_daemon(sidecar_daemon_factory: Callable[..., Daemon]) -> Daemon:
    """A daemon that nobody has asked anything, with a ledger that nothing is in."""
    return sidecar_daemon_factory()


@pytest.fixture(scope="session")
def _sidecar_daemon_of_the_session(sidecar_settings: Mapping[str, Any]) -> Iterator[Daemon]:
    from sidecar.testing.daemon import spawned  # only now, as the module's docstring says

    with spawned(**sidecar_settings) as daemon:
        yield daemon


@pytest.fixture
def sidecar_shared_daemon(request: pytest.FixtureRequest, _sidecar_daemon_of_the_session: Daemon) -> Iterator[Daemon]:
    """A daemon that may have served tests before: it has forgotten what they said, and tells only what is new.

    What they spent and what they left running stays; a test for which that matters wants a daemon of its own.
    """
    _sidecar_daemon_of_the_session.begin_anew()
    with _reported(request.node, _sidecar_daemon_of_the_session) as daemon:
        yield daemon


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for daemon in item.stash.get(_of_test, []):
            report.sections.append((f"sidecar daemon {daemon.pid}", daemon.log_tail()))
    return report


@contextmanager
def _spawned(test: pytest.Item, settings: Mapping[str, Any]) -> Iterator[Daemon]:
    from sidecar.testing.daemon import spawned  # as above

    with spawned(**settings) as daemon, _reported(test, daemon):
        yield daemon


@contextmanager
def _reported(test: pytest.Item, daemon: Daemon) -> Iterator[Daemon]:
    """Its log is in the report of this test, if that fails meanwhile."""
    daemons = test.stash.setdefault(_of_test, [])
    daemons.append(daemon)
    try:
        yield daemon
    finally:
        daemons.remove(daemon)
