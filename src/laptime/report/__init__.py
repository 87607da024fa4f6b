"""What was measured, put before someone. Made from a stored run alone; never imports torch."""

from laptime.report.content import content

__all__ = ["content"]
