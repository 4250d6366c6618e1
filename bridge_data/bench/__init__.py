"""How fast a user's own pipeline is, and where its time goes."""

from bridge_data.bench.advice import advise
from bridge_data.bench.config import BenchConfig
from bridge_data.bench.encoders import named_encoder
from bridge_data.bench.figures import Figures, Profile
from bridge_data.bench.run import measure, profile

__all__ = ["BenchConfig", "Figures", "Profile", "advise", "measure", "named_encoder", "profile"]
