"""The Kubernetes operator: keeps every SharedKVDeployment's prefill groups, decode pods and routers right."""
