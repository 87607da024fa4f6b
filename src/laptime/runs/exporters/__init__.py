"""Runs for other programs: Perfetto, TensorBoard, MLflow. CSV, which runs have anyway, is in `tables`."""
