"""Models that several modules decode with; Ctrl-C as at a terminal."""

import signal

import pytest

from tests.host.decode.cli_models import make_models


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Return folders: a target, a draft close to it, and a draft of noise."""
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def heard_interrupts():
    """Hear Ctrl-C, here and in processes of the test: what a shell starts by `&` ignores it."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)
