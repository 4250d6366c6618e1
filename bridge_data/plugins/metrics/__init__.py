"""Metrics for TensorBoard and Prometheus, and a callback that writes them to the loggers of a Lightning trainer."""
