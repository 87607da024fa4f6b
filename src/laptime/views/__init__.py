"""What is shown of runs, comparisons and predictions, made from stored values alone. Never imports torch."""
