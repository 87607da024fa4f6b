"""How trainings are started: as ranks here, on other hosts, on Ray, and one after the other as trials."""
