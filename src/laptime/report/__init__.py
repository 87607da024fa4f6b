"""What was measured, put before someone: terminal tables now, figures and pages later. Never imports torch."""

from laptime.report.content import content

__all__ = ["content"]
