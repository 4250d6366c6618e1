"""How fast a user's own pipeline is, and where its time goes."""

from bridge_data.tools.bench.bench_run import BENCH_OPTIONS, BenchConfig, measure, profile
from bridge_data.tools.bench.figures import Figures, Profile, advise

__all__ = ["BENCH_OPTIONS", "BenchConfig", "Figures", "Profile", "advise", "measure", "profile"]
