"""What holds for all unit tests: hypothesis fails for wrong answers, never for a slow machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("plait", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("plait")
