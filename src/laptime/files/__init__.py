"""Files: `read` opens and `parse` understands them within limits, `write` saves."""
