"""Which room may import which. A new arrow is a decision: it is drawn here, or the import goes."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator

import pytest

from tests.environments import ROOT

PACKAGE = ROOT / "a2a_grpc"

# What every room may import: errors, the messages, the pure task, settings, checks of plain values.
FOUNDATION = {"errors", "pb", "task", "config", "structs", "paging", "media_types", "extensions"}

# Beside the foundation. Rooms never import rooms above them.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "pb": set(),
    "task": set(),
    "config": set(),
    "structs": set(),
    "paging": set(),
    "media_types": set(),
    "extensions": set(),
    # What middleware has for agents, on its way through the process.
    "transient": set(),
    "middleware": {"agent"},
    "hooks": {"bus"},
    "telemetry": set(),
    "storage": set(),
    # The connection that the broker and the bus over NATS share.
    "nats": set(),
    "broker": {"storage", "nats"},
    "bus": {"storage", "nats"},
    "subscription": {"storage", "bus"},
    "cancellation": {"storage", "bus"},
    # Its builder loads the tasks that a message refers to.
    "agent": {"storage"},
    "auth": {"agent"},
    "push": {"storage"},
    "active": {
        *("agent", "storage", "broker", "bus", "subscription", "cancellation", "telemetry"),
        "transient",
    },
    "admission": {"agent", "storage", "broker", "bus", "push", "telemetry", "transient"},
    "service": {
        *("admission", "cancellation", "agent", "storage", "broker", "bus", "subscription", "push"),
        *("telemetry", "transient", "cards"),
    },
    # The call that an extended card is made for, and which extensions there are.
    "cards": {"agent"},
    "wire": {"middleware", "agent", "auth", "service", "subscription", "telemetry"},
    # The wire's table of errors and its constants; values of parts; what a card must be.
    "client": {"wire", "agent", "cards", "telemetry"},
    "adapters": {"agent"},
    "backends": {"storage", "broker", "bus"},
    "recovery": {"storage", "broker"},
    "listener": set(),
    "health": set(),
    "server": {
        *("backends", "recovery", "listener", "health"),
        *("wire", "service", "admission", "active", "agent", "auth", "storage", "broker", "bus"),
        *("push", "subscription", "telemetry", "middleware", "hooks", "transient", "cards"),
    },
    "commands": {"server", "agent", "storage", "broker", "bus", "client", "cards"},
    "cli": {"commands"},
    "__main__": {"cli"},
    "__init__": {
        *("server", "active", "agent", "auth", "storage", "broker", "bus", "client"),
        *("middleware", "hooks", "cards"),
    },
}

# Libraries that only some rooms know; a file in a room is named as room/file.
ONLY_IN: dict[str, set[str]] = {
    "grpc": {"wire", "client", "listener"},
    "grpc_health": {"wire", "client", "server", "health"},
    "grpc_reflection": {"wire"},
    "grpc_status": {"wire", "client"},
    "sqlalchemy": {"storage"},
    "alembic": {"storage/sql/migrations"},
    "aiosqlite": {"storage"},
    "sqlite3": {"storage"},
    "asyncpg": {"storage"},
    "nats": {"nats"},
    "httpx": {"push", "client/card_source"},
    "httpcore": {"push"},
    "jwt": {"cards", "auth"},
    "cryptography": {"cards", "auth"},
    "rfc8785": {"cards"},
    "yaml": {"cards"},
    "click": {"cli", "commands"},
    "rich": {"commands/client/terminal"},
    "uvloop": {"server"},
    "pydantic_ai": {"adapters"},
    "langgraph": {"adapters"},
    "langchain_core": {"adapters"},
    "pydantic_core": {"adapters"},
    "a2a_grpc_pb": {"pb"},
}

# Of a seam with several backends: the backends, which never import one another.
BACKENDS: dict[str, dict[str, set[str]]] = {
    "storage": {"memory": {"memory", "records"}, "sql": set()},  # what is left is SQL's
    "broker": {"memory": {"memory"}, "nats": {"nats", "jetstream", "pull"}},
    "bus": {"memory": {"memory"}, "nats": {"nats", "encoding"}},
}


def modules() -> Iterator[tuple[tuple[str, ...], ast.Module]]:
    """Every module of the package, by the parts of its name within the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield (
            path.relative_to(PACKAGE).with_suffix("").parts,
            ast.parse(path.read_text(encoding="utf-8"), str(path)),
        )


def imports(tree: ast.Module) -> set[str]:
    """Every module that is imported anywhere, also inside functions and for type checking."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            assert node.module is not None
            # `from a2a_grpc import pb` imports a room, `from a2a_grpc.errors import X` a name.
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(tree: ast.Module) -> set[tuple[str, ...]]:
    """The imported modules of the package, by the parts of their names within it."""
    return {tuple(name.split(".")[1:]) for name in imports(tree) if name.startswith("a2a_grpc.")}


MODULES = dict(modules())


@pytest.mark.parametrize("module", MODULES, ids="/".join)
def test_a_room_imports_only_what_it_may(module: tuple[str, ...]) -> None:
    room = module[0]
    assert room in MAY_IMPORT, f"{room} is a new room: draw its arrows"
    allowed = MAY_IMPORT[room] | {room}
    if room not in FOUNDATION:
        allowed |= FOUNDATION
    elif room != "pb":
        allowed |= {"pb", "errors"}
    used = {name[0] for name in ours(MODULES[module])}
    assert used <= allowed, f"{'/'.join(module)} must not import {sorted(used - allowed)}"


@pytest.mark.parametrize("module", MODULES, ids="/".join)
def test_a_library_is_known_only_where_it_belongs(module: tuple[str, ...]) -> None:
    places = {"/".join(module[: count + 1]) for count in range(len(module))}
    for name in imports(MODULES[module]):
        library = name.split(".")[0]
        if library in ONLY_IN:
            assert places & ONLY_IN[library], f"{'/'.join(module)} must not import {library}"


def test_service_and_active_never_meet() -> None:
    for module, tree in MODULES.items():
        used = {name[0] for name in ours(tree)}
        if module[0] in ("service", "admission", "wire"):
            assert "active" not in used, module
        if module[0] == "active":
            assert not used & {"service", "admission", "wire", "server"}, module


def backend(room: str, name: str) -> str | None:
    """The backend that a module of a room with backends belongs to; None for what they share."""
    if name in ("base", "values", "patience", "__init__"):
        return None
    for which, files in BACKENDS[room].items():
        if name in files:
            return which
    return next((which for which, files in BACKENDS[room].items() if not files), None)


@pytest.mark.parametrize("room", BACKENDS)
def test_backends_never_import_one_another(room: str) -> None:
    for module, tree in MODULES.items():
        if module[0] != room or len(module) < 2:
            continue
        own = backend(room, module[1])
        for name in ours(tree):
            if name[0] == room and len(name) > 1:
                other = backend(room, name[1])
                assert other in (own, None), f"{'/'.join(module)} imports {'.'.join(name)}"


def test_every_backend_can_be_imported_alone() -> None:
    """base imports no backend, so a seam costs nothing that its user does not choose."""
    for room in BACKENDS:
        for name in ours(MODULES[(room, "base")]):
            assert name[0] != room or name[1:2] in (("base",), ("values",)), name


def test_the_generated_code_is_imported_by_its_door_only() -> None:
    for module, tree in MODULES.items():
        if module != ("pb",):
            assert not {n for n in imports(tree) if n.split(".")[0] == "a2a_grpc_pb"}, module


# What is installed.


def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return found


def names(requirements: list[str]) -> set[str]:
    return {
        re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower().replace("_", "-")  # type: ignore[index]
        for requirement in requirements
    }


def test_the_lock_pins_every_dependency_and_names_no_place() -> None:
    described = project()["project"]
    assert isinstance(described, dict)
    wanted = names(described["dependencies"])
    wanted |= names(described["optional-dependencies"]["dev"])
    lines = (ROOT / ".ci" / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line and not line.lstrip().startswith("#")]
    assert all("==" in line for line in pinned)
    assert wanted <= names(pinned)
    assert not [line for line in lines if "://" in line or line.startswith("--")]


def test_every_dependency_has_a_lower_bound_and_is_imported() -> None:
    described = project()["project"]
    assert isinstance(described, dict)
    assert all(">=" in requirement for requirement in described["dependencies"])
    imported = {name.split(".")[0] for tree in MODULES.values() for name in imports(tree)}
    modules_of = {
        "grpcio": "grpc",
        "grpcio-health-checking": "grpc_health",
        "grpcio-reflection": "grpc_reflection",
        "grpcio-status": "grpc_status",
        "protobuf": "google",
        "googleapis-common-protos": "google",
        "pyyaml": "yaml",
    }
    for name in names(described["dependencies"]):
        assert modules_of.get(name, name) in imported, f"{name} is imported nowhere"


def test_architecture_reads_the_package() -> None:
    assert len(MODULES) > 30
