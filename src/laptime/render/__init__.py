"""Views, rendered: in the terminal, as HTML pages, by the server."""
