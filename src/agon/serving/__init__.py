"""The trained pair behind an OpenAI-compatible HTTP API; docs/serving.md describes it."""
