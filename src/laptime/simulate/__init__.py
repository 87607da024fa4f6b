"""A plan on a cluster, played on a virtual clock. Never torch."""
