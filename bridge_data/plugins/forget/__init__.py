"""Samples that no run reads any more, listed beside a data set, without writing it again."""
