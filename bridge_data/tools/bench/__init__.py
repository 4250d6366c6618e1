"""How fast a user's own pipeline is, and where its time goes."""

from bridge_data.tools.bench.advice import advise
from bridge_data.tools.bench.bench_config import BenchConfig
from bridge_data.tools.bench.bench_run import measure, profile
from bridge_data.tools.bench.figures import Figures, Profile
from bridge_data.tools.bench.named_encoders import named_encoder

__all__ = ["BenchConfig", "Figures", "Profile", "advise", "measure", "named_encoder", "profile"]
