"""Models that several modules decode with."""

import pytest

from tests.host.decode.cli_models import make_models


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Return folders: a target, a draft close to it, and a draft of noise."""
    return make_models(tmp_path_factory.mktemp("models"))
