"""`case("prefetch")` runs a script of `scripts/` bare and recorded, once for all tests that ask."""

import functools

import pytest

from tests.cases.harness import warm

# Seconds to import, so they have a warm process of their own and the other scripts go without them.
LIBRARIES = {"accelerated", "compiled", "graphs", "hugging_face", "lightning_module"}
PARTS = (
    "accelerate",
    "lightning",
    "torch._inductor.compile_fx",
    "transformers.trainer",
    "transformers.models.gpt2.modeling_gpt2",
    "torch_geometric.datasets",
    "torch_geometric.loader",
    "torch_geometric.nn",
)


@pytest.fixture(scope="session")
def only_torch():
    """A warm process for most scripts."""
    with warm() as process:
        yield process


@pytest.fixture(scope="session")
def with_libraries():
    """A warm process for scripts that use other libraries."""
    with warm(*PARTS) as process:
        yield process


@pytest.fixture(scope="session")
def case(only_torch, with_libraries, tmp_path_factory):
    """Run a script both ways; the same arguments again give what they gave before."""

    @functools.cache
    def run(name, *arguments):
        process = with_libraries if name in LIBRARIES else only_torch
        return process.case(name, list(arguments), tmp_path_factory.mktemp(name))

    return run
