"""The API `plait.dev/v1alpha1` as pydantic models: the one source of CRD YAML, admission, plan and docs."""
