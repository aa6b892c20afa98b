"""Tests of a2a-grpc."""

import os

# Before anything imports gRPC: the suite starts programs while calls go on, see `a2a_grpc.pb`.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
