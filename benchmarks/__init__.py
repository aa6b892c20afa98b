"""How much a2a-grpc costs: beside a server that does nothing, and beside a2a-sdk. See README.md."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

# Before grpc is imported: it would comment on every process that is started.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# Likewise: its handlers let one in fifty processes die that are started on uvloop during calls.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A checkout that is not installed keeps the generated messages in a folder of its own.
if find_spec("a2a_grpc_pb") is None:
    sys.path.append(str(Path(__file__).resolve().parent.parent / "generated"))
