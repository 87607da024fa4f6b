"""Pages in a real browser. A package, so that its one browser ends with the last of these tests."""
