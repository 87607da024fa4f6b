"""What `make bench` runs: what the recorder costs, beside its peers, and whether its times are right."""
