"""Where metrics are written: JSON lines, logs, TensorBoard, Prometheus, and the loggers of a Lightning trainer."""
