"""A real Kubernetes for tests, on a plain Linux machine: no Docker, no registry, no fake client.

`instance` names one cluster and where its things lie; `binaries` builds what it runs; `plane` is its
control plane, `node` one real node, `fake_nodes` the H200 nodes that exist as objects only; `cluster` puts
them together. `python -m tests.cluster.harness` drives it by hand.
"""
