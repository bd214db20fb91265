"""Plait's router measured beside sglang-router and a FastAPI + httpx baseline, on the same mock engines.

`run` measures CPU, time to the first token, memory and prefix placement; `soak` holds 1,000 streams open for
minutes. Mock engines and load generator are Go programs (`go/`): they must cost less than what they measure.
"""
