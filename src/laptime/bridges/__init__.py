"""Recording inside of what others wrote: Lightning, transformers, unedited scripts, launched ranks."""
