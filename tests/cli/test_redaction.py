"""Passwords in the URLs of stores and brokers: nothing that the command writes shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from a2a_grpc.commands.redaction import Redaction, shown
from tests.cli.process import Process

PASSWORD = "hunter2-secret"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("memory:", "memory:"),
        ("sqlite:///a2a-grpc.db", "sqlite:///a2a-grpc.db"),
        ("sqlite:////home/me@work/a.db", "sqlite:////home/me@work/a.db"),
        ("postgresql://db.example/agents", "postgresql://db.example/agents"),
        ("postgresql://me@db/agents", "postgresql://***@db/agents"),
        ("postgresql://me:pw@db:5432/agents", "postgresql://***@db:5432/agents"),
        ("postgresql://me:p@w@db/agents", "postgresql://***@db/agents"),
        ("postgresql://me:p/w@db/agents", "postgresql://***@db/agents"),
        ("postgresql://me:p?w@db/agents", "postgresql://***"),
        ("postgresql://me:p?w@db/agents?password=x", "postgresql://***"),
        ("postgresql:///agents?host=/run&password=pw", "postgresql:///agents?***"),
        ("postgresql://me@db/agents?password=p@w", "postgresql://***"),
        ("nats://h:4222", "nats://h:4222"),
        ("nats://token@h", "nats://***@h"),
        ("nats://a:1,nats://me:pw@b:2", "nats://***@b:2"),
        ("nats://me:pw@a:1,nats://me:pw@b:2?name=x", "nats://***@b:2?***"),
        ("me:pw@db/agents", "***@db/agents"),
    ],
)
def test_what_is_shown_of_a_url(url: str, expected: str) -> None:
    assert shown(url) == expected


@pytest.mark.parametrize(
    ("url", "text", "expected"),
    [
        ("postgresql://me:hunter2@db/x", "can't reach {url}", "can't reach postgresql://***@db/x"),
        ("postgresql://me:hunter2@db/x", "wrong: hunter2", "wrong: ***"),
        ("postgresql://me:h%40nter2@db/x", "h@nter2, h%40nter2", "***, ***"),
        ("postgresql://me:hunt@er2@db/x", "wrong: hunt@er2", "wrong: ***"),
        ("postgresql://db/x?password=hunter2", "wrong: hunter2", "wrong: ***"),
        ("postgresql://me:hunter2@db/x", "user me", "user me"),
        ("nats://abcdef@h", "token abcdef", "token ***"),
        ("nats://a:pass1@h,nats://b:pass2@i", "pass1 pass2", "*** ***"),
        # No secret, but what everything here is called.
        ("postgresql://postgres:postgres@db/x", "in postgresql", "in postgresql"),
        ("postgresql://db/x?sslmode=require", "it requires", "it requires"),
    ],
)
def test_secrets_are_taken_out_of_any_text(url: str, text: str, expected: str) -> None:
    redaction = Redaction()
    redaction.add(url)
    assert redaction(text.format(url=url)) == expected


def test_what_is_no_url_hides_nothing() -> None:
    redaction = Redaction()
    redaction.add(None)
    redaction.add(object())
    redaction.add("memory:")
    assert redaction("memory: as it is") == "memory: as it is"


TALKATIVE = f"""
import logging, os, warnings
from a2a_grpc import A2AServer, InMemoryStorage

class Storage(InMemoryStorage):
    async def __aenter__(self):
        url = os.environ.get("A2A_GRPC_STORE", "postgresql://me:{PASSWORD}@db/agents")
        logging.getLogger("driver").warning("connecting to %s", url)
        raise OSError("no connection to " + url + " with {PASSWORD}")

async def agent(context):
    return ""

server = A2AServer(agent, storage="postgresql://me:{PASSWORD}@db/agents")
server.run = lambda *, on_started: A2AServer(agent, storage=Storage()).run(on_started=on_started)
"""


@pytest.mark.parametrize("arguments", [[], ["--log-format", "json"], ["--log-level", "debug"]])
@pytest.mark.parametrize("given", [True, False])
def test_neither_logs_nor_errors_nor_tracebacks_show_a_password(
    tmp_path: Path, arguments: list[str], given: bool
) -> None:
    (tmp_path / "talkative.py").write_text(TALKATIVE, encoding="utf-8")
    variables = {"A2A_GRPC_STORE": f"postgres://other:{PASSWORD}@db/agents"} if given else {}
    with Process(
        *("serve", "talkative.py", "--port", "0", *arguments), cwd=tmp_path, variables=variables
    ) as process:
        assert process.wait() == 1
        text = "\n".join(process.lines)
    assert "connecting to postgres" in text
    assert "no connection to postgres" in text
    assert "***@db/agents" in text
    assert PASSWORD not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--store", f"mysql://me:{PASSWORD}@db/agents"],
        ["--store", f"me:{PASSWORD}@db/agents"],
        ["--broker", f"amqp://me:{PASSWORD}@host"],
        ["--broker", f"nats://me:{PASSWORD}@host"],
        ["--store", f"postgresql://me:{PASSWORD}@db/agents", "--role", "worker"],
    ],
)
def test_no_refusal_shows_a_password(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "echo.py").write_text("async def agent(context): return ''", encoding="utf-8")
    with Process("serve", "echo.py", *arguments, cwd=tmp_path) as process:
        assert process.wait() == 2
        (line,) = process.lines
    assert line.startswith("error: ")
    assert PASSWORD not in line
