"""Lists the public names of a library that docs/coming-from.md maps, from its source alone.

    python public_names.py LIBRARY DIRECTORY

DIRECTORY is the library's package, unpacked anywhere; nothing in it is run. Prints JSON: names of
modules as they are, members as `Class.member`, arguments of constructors as `Class(argument)`.
tests/data/other_libraries.json holds what it printed, for the versions that are named there.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

EXPORTED, DEFINED, MEMBERS, ARGUMENTS = "exported", "defined", "members", "arguments"

LIBRARIES: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "a2a-sdk": [
        ("server/agent_execution/__init__.py", EXPORTED, ()),
        ("server/agent_execution/agent_executor.py", MEMBERS, ("AgentExecutor",)),
        ("server/agent_execution/context.py", MEMBERS, ("RequestContext",)),
        ("server/agent_execution/context.py", ARGUMENTS, ("RequestContext",)),
        (
            "server/agent_execution/request_context_builder.py",
            MEMBERS,
            ("RequestContextBuilder",),
        ),
        (
            "server/agent_execution/simple_request_context_builder.py",
            ARGUMENTS,
            ("SimpleRequestContextBuilder",),
        ),
        ("server/tasks/task_updater.py", DEFINED, ()),
        ("server/tasks/task_updater.py", MEMBERS, ("TaskUpdater",)),
        ("server/tasks/task_updater.py", ARGUMENTS, ("TaskUpdater",)),
        ("server/events/__init__.py", EXPORTED, ()),
        ("server/events/event_queue.py", MEMBERS, ("EventQueue",)),
        ("server/context.py", DEFINED, ()),
        ("server/context.py", MEMBERS, ("ServerCallContext",)),
        ("auth/user.py", DEFINED, ()),
        ("auth/user.py", MEMBERS, ("User",)),
        ("server/id_generator.py", DEFINED, ()),
        ("helpers/__init__.py", EXPORTED, ()),
        ("utils/errors.py", DEFINED, ()),
    ],
    "fasta2a": [
        ("__init__.py", EXPORTED, ()),
        ("applications.py", ARGUMENTS, ("FastA2A",)),
        ("worker.py", MEMBERS, ("Worker",)),
        ("storage.py", DEFINED, ()),
        ("storage.py", MEMBERS, ("Storage",)),
        ("broker.py", DEFINED, ()),
        ("broker.py", MEMBERS, ("Broker",)),
        ("event_bus.py", DEFINED, ()),
        ("event_bus.py", MEMBERS, ("EventBus",)),
        ("extensions.py", EXPORTED, ()),
        ("task_manager.py", DEFINED, ()),
        ("client.py", DEFINED, ()),
        ("client.py", MEMBERS, ("A2AClient",)),
        ("schema.py", DEFINED, ()),
        ("schema.py", MEMBERS, ("TaskSendParams", "TaskIdParams")),
        ("pydantic_ai/__init__.py", EXPORTED, ()),
        ("pydantic_ai/_bridge.py", ARGUMENTS, ("agent_to_a2a",)),
    ],
    "a2akit": [
        ("__init__.py", EXPORTED, ()),
        ("worker/__init__.py", EXPORTED, ()),
        ("worker/base.py", MEMBERS, ("TaskContext", "Worker", "HistoryMessage")),
        ("worker/base.py", MEMBERS, ("PreviousArtifact",)),
        ("_parts.py", MEMBERS, ("FileInfo",)),
        ("server.py", MEMBERS, ("A2AServer",)),
        ("server.py", ARGUMENTS, ("A2AServer",)),
        ("agent_card.py", MEMBERS, ("AgentCardConfig", "CapabilitiesConfig")),
        ("dependencies.py", MEMBERS, ("Dependency", "DependencyContainer")),
        ("middleware/base.py", MEMBERS, ("A2AMiddleware", "RequestEnvelope")),
        ("hooks.py", MEMBERS, ("LifecycleHooks",)),
        ("config.py", MEMBERS, ("Settings",)),
        ("storage/base.py", MEMBERS, ("Storage",)),
        ("broker/base.py", MEMBERS, ("Broker", "OperationHandle", "CancelScope")),
        ("broker/base.py", MEMBERS, ("CancelRegistry",)),
        ("event_bus/base.py", MEMBERS, ("EventBus",)),
        ("push/store.py", MEMBERS, ("PushConfigStore",)),
        ("client/__init__.py", EXPORTED, ()),
        ("client/base.py", MEMBERS, ("A2AClient",)),
        ("client/base.py", ARGUMENTS, ("A2AClient",)),
        ("client/result.py", MEMBERS, ("ClientResult", "StreamEvent", "ListResult")),
    ],
}


def names(library: str, directory: Path) -> list[str]:
    """What is to be mapped, sorted."""
    found: set[str] = set()
    for file, what, of in LIBRARIES[library]:
        module = ast.parse((directory / file).read_text(encoding="utf-8"))
        if what == EXPORTED:
            found.update(_exported(module))
        elif what == DEFINED:
            # Values in small letters are the library's own: loggers, adapters, tracers.
            found.update(_defined(module.body, values=False))
        for name in of:
            definition = _definition(module, name)
            if what == MEMBERS and isinstance(definition, ast.ClassDef):
                found.update(f"{name}.{member}" for member in _defined(definition.body))
            elif what == ARGUMENTS:
                found.update(f"{name}({argument})" for argument in _arguments(definition))
    return sorted(name for name in found if not name.endswith(".model_config"))


def _exported(module: ast.Module) -> list[str]:
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            exported: list[str] = list(ast.literal_eval(statement.value))
            return exported
    raise ValueError("no __all__")


def _defined(body: Iterable[ast.stmt], *, values: bool = True) -> Iterator[str]:
    """Classes, functions, methods and values with a public name; no type variables.

    Without `values`, only those values that are constants or types.
    """
    for statement in body:
        defined: list[str] = []
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined.append(statement.name)
        elif isinstance(statement, ast.AnnAssign):
            defined.append(ast.unparse(statement.target))
        elif isinstance(statement, ast.Assign) and "TypeVar(" not in ast.unparse(statement.value):
            defined += [ast.unparse(target) for target in statement.targets]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and not values:
            defined = [name for name in defined if name[0].isupper()]
        yield from (n for n in defined if n.isidentifier() and not n.startswith("_"))


def _definition(module: ast.Module, name: str) -> ast.ClassDef | ast.FunctionDef:
    for statement in module.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef) and statement.name == name:
            return statement
    raise ValueError(f"no {name}")


def _arguments(definition: ast.ClassDef | ast.FunctionDef) -> list[str]:
    if isinstance(definition, ast.ClassDef):
        (function,) = (
            one
            for one in definition.body
            if isinstance(one, ast.FunctionDef) and one.name == "__init__"
        )
    else:
        function = definition
    every = [*function.args.args, *function.args.kwonlyargs]
    return [argument.arg for argument in every if argument.arg != "self"]


if __name__ == "__main__":
    json.dump(names(sys.argv[1], Path(sys.argv[2])), sys.stdout, indent=1)
