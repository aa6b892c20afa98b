"""Finds what TARGET names and makes an `A2AServer` of it.

TARGET is `package.module:name` or `path/to/file.py:name`. A module comes from the current directory
or from what is installed; a file is imported as `python file.py` would, with its directory on the
path, except that it is not `__main__`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from a2a_grpc import pb
from a2a_grpc.agent.executor import AgentExecutor
from a2a_grpc.agent.function import as_executor
from a2a_grpc.agent.worker import Worker
from a2a_grpc.server import A2AServer

DEFAULT_NAMES = ("server", "agent")
"""What TARGET names when it gives no name: the first of these that the module has."""


class TargetError(Exception):
    """TARGET can't be served; the message names it and the remedy."""


class TargetSyntaxError(TargetError):
    """TARGET is not written as it must be."""


def load_server(target: str) -> A2AServer:
    """The server that TARGET names, or a new one for the agent that it names.

    Raises TargetError; its `__cause__` is what the target's own code raised, if that is the reason.
    """
    location, name = split_target(target)
    module = _import_file(location) if _is_file(location) else _import_module(location)
    found = _look_up(module, location, name)
    if isinstance(found, A2AServer):
        return found
    executor = _executor(found, target)
    return A2AServer(executor, card=pb.AgentCard(name=_name_of(found, module)))


def split_target(target: str) -> tuple[str, str | None]:
    """TARGET as (module or file, name or None).

    Raises TargetSyntaxError.
    """
    location, colon, name = target.rpartition(":")
    if not colon or "/" in name or "\\" in name:  # the colon of C:\agents\echo.py
        location, name = target, ""
        colon = ""
    if not location or (colon and not _is_dotted(name)):
        raise TargetSyntaxError(
            f"{target!r} is not a target: use package.module:name or path/to/file.py:name, where "
            f"the name may be left out if it is {' or '.join(DEFAULT_NAMES)}"
        )
    return location, name or None


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _is_file(location: str) -> bool:
    return (
        location.endswith(".py")
        or not _is_dotted(location)
        or ("." in location and Path(location).is_file())  # notes.txt is no module
    )


def _import_file(location: str) -> ModuleType:
    path = Path(location)
    if path.suffix != ".py":
        python = path.with_name(f"{path.name}.py") if path.name else path
        remedy = (
            f"did you mean {python}?"
            if python.is_file()
            else "use path/to/file.py or package.module"
        )
        raise TargetSyntaxError(
            f"{location} is neither a Python file nor a module's name: {remedy}"
        )
    try:
        path.open("rb").close()
    except OSError as error:
        raise TargetError(
            f"can't read {location}: {error.strerror}; give the path of a Python file (this is "
            f"{os.getcwd()})"
        ) from error
    path = path.resolve()
    # Under its own name other modules that import it get the same one; not under a library's.
    name = path.stem
    if not name.isidentifier() or name in sys.modules or name in sys.stdlib_module_names:
        name = f"_target_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _import_failed(location, error, str(path)) from error
    return module


def _import_module(name: str) -> ModuleType:
    # A console script does not have it on its path; `python -m` does.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(name, error) from error
        raise TargetError(
            f"there is no module {error.name}: install it, start in the directory that holds it "
            f"(this is {os.getcwd()}), or give path/to/file.py"
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(
    location: str, error: Exception | SystemExit, filename: str | None = None
) -> TargetError:
    place = location
    if isinstance(error, SyntaxError) and error.filename is not None:
        line = error.lineno
        if error.filename != filename:
            place = error.filename
    else:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == filename
        ]
        line = lines[-1] if lines else None
    at = f"{place}, line {line}" if line else place
    reason = str(error.msg if isinstance(error, SyntaxError) else error)
    text = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    if isinstance(error, SystemExit):
        text += " (what only a program does belongs below `if __name__ == '__main__':`)"
    elif isinstance(error, ModuleNotFoundError):
        text += " (install it, into the environment of a2a-grpc)"
    elif isinstance(error, ImportError) and "relative import" in reason:
        text += " (a file of a package is served as package.module:name)"
    return TargetError(
        f"can't import {location}: {at}: {text}"
        if at != location
        else f"can't import {location}: {text}"
    )


def _look_up(module: ModuleType, location: str, name: str | None) -> Any:
    names = DEFAULT_NAMES if name is None else (name,)
    for candidate in names:
        found: Any = module
        for part in candidate.split("."):
            found = getattr(found, part, _MISSING)
        if found is not _MISSING:
            return found
    said = f"no {name}" if name is not None else f"neither {' nor '.join(DEFAULT_NAMES)}"
    others = _agents_in(module)
    remedy = f"; name one with {location}:{others[0]}" if others else "; define one of them"
    if name is not None and not others:
        remedy = "; define it, or name another"
    if len(others) > 1:
        remedy += f" (it has {', '.join(others)})"
    raise TargetError(f"{location} has {said}{remedy}")


_MISSING = object()


def _agents_in(module: ModuleType) -> list[str]:
    """Names in the module that may well be its agents."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (getattr(value, "__module__", None) == module.__name__ or isinstance(value, A2AServer))
        and (
            isinstance(value, A2AServer)
            or callable(getattr(value, "execute", None))
            or callable(getattr(value, "run", None))
            or isinstance(value, Worker)
            or (isinstance(value, type) and issubclass(value, Worker) and value is not Worker)
            or _is_async(value)
        )
    ]


def _is_async(function: Any) -> bool:
    function = inspect.unwrap(function) if callable(function) else function
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _executor(found: Any, target: str) -> AgentExecutor:
    if inspect.isfunction(found) and not _is_async(found):
        raise TargetError(
            f"{target} is a function that is not async, so it is not an agent: make it `async def`"
        )
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise TargetError(
                f"can't make an agent of the class {target}: {type(error).__name__}: {error}; "
                "give it a constructor without arguments, or name an object"
            ) from error
    try:
        return as_executor(found)
    except TypeError as error:
        raise TargetError(f"{target} can't be served: {error}") from error


def _name_of(found: Any, module: ModuleType) -> str:
    """The agent's name, for a card that nobody has written."""
    name = getattr(found, "__name__", None) or type(found).__name__
    if name not in DEFAULT_NAMES:
        return str(name)
    return module.__name__.rpartition(".")[2].removeprefix("_target_")
