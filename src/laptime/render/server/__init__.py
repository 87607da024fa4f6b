"""The local dashboard: a folder of runs in a browser. It only reads, and no file of a run leaves as it is."""
