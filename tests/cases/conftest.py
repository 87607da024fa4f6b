"""`case("prefetch")` runs a script of `scripts/` bare and recorded, once for all tests that ask."""

import functools

import pytest

from tests.cases.harness import warm

# Seconds to import, so they have a warm process of their own and the other scripts go without them.
LIBRARIES = {
    "accelerated": ("accelerate",),
    "hugging_face": ("transformers", "accelerate"),
    "lightning_module": ("lightning",),
    "graphs": ("torch_geometric",),
}
PARTS = (
    "accelerate",
    "lightning",
    "transformers.trainer",
    "transformers.models.gpt2.modeling_gpt2",
    "torch_geometric.datasets",
    "torch_geometric.loader",
    "torch_geometric.nn",
)


@pytest.fixture(scope="session")
def case(tmp_path_factory):
    """Run a script both ways; the same arguments again give what they gave before."""
    with warm() as plain, warm(*PARTS) as with_libraries:

        @functools.cache
        def run(name, *arguments):
            for library in LIBRARIES.get(name, ()):
                pytest.importorskip(library)
            process = with_libraries if name in LIBRARIES else plain
            return process.case(name, list(arguments), tmp_path_factory.mktemp(name))

        yield run
