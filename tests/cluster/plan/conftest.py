"""What these tests need beside the cluster."""

from tests.cluster.lws.kind import lws

__all__ = ["lws"]
