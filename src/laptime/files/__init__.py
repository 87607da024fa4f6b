"""Files: `read` opens and `parse` understands them within limits, `typed` makes values, `write` saves."""
