"""The zoo: networks by name. A new network is one file here, which enters itself with `@network(…)`."""
