"""Metrics for TensorBoard and Prometheus."""
