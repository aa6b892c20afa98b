"""The URL of a NATS deployment: its servers, how to be let in, and the namespace.

    nats://host:4222                            one server
    tls://user:password@a,tls://user:password@b several, over TLS
    nats://host?namespace=shop&replicas=3       what else there is to say

Nothing secret of it is ever in a log, an error or a repr.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

_PARAMETERS = (
    "namespace",
    "credentials",
    "nkey",
    "token",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "replicas",
)
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HINT = "use nats://host:4222 or tls://host:4222, several of them with commas between"


@dataclass(frozen=True, slots=True, repr=False)
class NatsServer:
    """One server to connect to, with the credentials that its URL names."""

    host: str
    port: int
    tls: bool
    user: str | None = None
    password: str | None = None
    tls_name: str | None = None
    """The name in its certificate, where that is not `host`."""

    def __repr__(self) -> str:
        return self.shown

    @property
    def shown(self) -> str:
        """The server without its credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, repr=False)
class NatsAddress:
    """A NATS deployment, and the part of it that is ours.

    Attributes:
        servers: at least one; any of them will do.
        namespace: the first word of all subjects, streams and consumers. Deployments of agents that
            share NATS need each their own.
        credentials: the path of a .creds file.
        nkey: the path of a file with an NKey seed.
        token: a token.
        tls_ca: the path of the authorities' certificates (PEM); None for those of the system.
        tls_cert, tls_key: the paths of the client's certificate and key (PEM).
        replicas: how many servers of the cluster keep each stream.
    """

    servers: tuple[NatsServer, ...]
    namespace: str = "a2a-grpc"
    credentials: str | None = None
    nkey: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    replicas: int = 1

    @classmethod
    def parse(cls, url: str) -> NatsAddress:
        """Read a URL.

        Raises ValueError, which names what is wrong and what is allowed, and no secret.
        """
        head, _, query = url.partition("?")
        given = _parameters(query)
        namespace = given.get("namespace", "a2a-grpc")
        if not _NAMESPACE.fullmatch(namespace):
            raise ValueError(
                f"namespace is {namespace!r}; use up to 64 letters, digits, - and _, since it "
                "becomes a part of subjects and of the names of streams"
            )
        replicas = given.get("replicas", "1")
        if replicas not in ("1", "3", "5"):
            raise ValueError(f"replicas is {replicas!r}; use 1, 3 or 5")
        if ("tls_cert" in given) != ("tls_key" in given):
            raise ValueError("tls_cert and tls_key belong together; give both or neither")
        uses_tls = bool(given.keys() & {"tls_ca", "tls_cert"})
        servers = _servers(head, uses_tls)
        ways: list[str] = [name for name in ("credentials", "nkey", "token") if name in given]
        if any(server.user is not None for server in servers):
            ways.append("user and password in the server's address")
        if len(ways) > 1:
            raise ValueError(f"there are several credentials: {', '.join(ways)}; give one of them")
        return cls(
            servers=servers,
            namespace=namespace,
            credentials=given.get("credentials"),
            nkey=given.get("nkey"),
            token=given.get("token"),
            tls_ca=given.get("tls_ca"),
            tls_cert=given.get("tls_cert"),
            tls_key=given.get("tls_key"),
            replicas=int(replicas),
        )

    def __repr__(self) -> str:
        return f"NatsAddress({self.shown}, namespace={self.namespace!r})"

    @property
    def shown(self) -> str:
        """The servers without their credentials."""
        return ",".join(server.shown for server in self.servers)

    def tls_context(self) -> ssl.SSLContext:
        """What TLS connections use. Reads files; raises OSError and ssl.SSLError."""
        context = ssl.create_default_context(cafile=self.tls_ca)
        if self.tls_cert is not None:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        return context


def _parameters(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _PARAMETERS:
            raise ValueError(
                f"unknown parameter {name!r} in the NATS URL; use {', '.join(_PARAMETERS)}"
            )
        if name in given:
            raise ValueError(f"{name} is given twice in the NATS URL; give it once")
        if not value:
            raise ValueError(f"{name} is empty in the NATS URL; give it a value or leave it out")
        given[name] = value
    return given


def _servers(head: str, uses_tls: bool) -> tuple[NatsServer, ...]:
    servers: list[NatsServer] = []
    scheme = ""
    for part in head.split(","):
        if "://" not in part and scheme:
            part = f"{scheme}://{part}"
        try:
            url = urlsplit(part)
            port = url.port or 4222
        except ValueError:
            # What urllib says may quote the password.
            raise ValueError(f"a server in the NATS URL is malformed; {_HINT}") from None
        if url.scheme not in ("nats", "tls"):
            raise ValueError(f"a server in the NATS URL has no scheme of NATS; {_HINT}")
        if not url.hostname or url.path not in ("", "/") or url.fragment:
            raise ValueError(f"a server in the NATS URL is malformed; {_HINT}")
        scheme = url.scheme
        user, password = _login(url)
        servers.append(NatsServer(url.hostname, port, scheme == "tls" or uses_tls, user, password))
    return tuple(servers)


def _login(url: SplitResult) -> tuple[str | None, str | None]:
    if url.username is None:
        return None, None
    return unquote(url.username), None if url.password is None else unquote(url.password)
