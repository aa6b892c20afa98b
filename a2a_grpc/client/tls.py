"""What a client trusts, and what it shows of itself, on a TLS connection."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTLS:
    """TLS, and mutual TLS with a certificate of the client's own.

    Everything is PEM: `bytes` are the text itself, `str` and `Path` name a file, which is read when
    the client is made.

    Attributes:
        root_certificates: the authorities that are trusted; None for those of gRPC.
        certificate: the client's certificate chain, for mutual TLS; needs `private_key`.
        private_key: the key of `certificate`.
        server_name: the name that the server's certificate must have, where it is not the address.
    """

    root_certificates: str | Path | bytes | None = None
    certificate: str | Path | bytes | None = None
    private_key: str | Path | bytes | None = field(default=None, repr=False)
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("ClientTLS takes certificate and private_key together, or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel; raises ValueError that names what can't be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_pem("root_certificates", self.root_certificates, "CERTIFICATE"),
            private_key=_pem("private_key", self.private_key, "PRIVATE KEY"),
            certificate_chain=_pem("certificate", self.certificate, "CERTIFICATE"),
        )

    def loaded(self) -> Self:
        """The same with the text of every file; raises ValueError that names what can't be read."""
        return replace(
            self,
            root_certificates=_pem("root_certificates", self.root_certificates, "CERTIFICATE"),
            certificate=_pem("certificate", self.certificate, "CERTIFICATE"),
            private_key=_pem("private_key", self.private_key, "PRIVATE KEY"),
        )


def _pem(name: str, source: str | Path | bytes | None, kind: str) -> bytes | None:
    if source is None:
        return None
    where = "the bytes given" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes):
        try:
            source = Path(source).read_bytes()
        except OSError as error:
            raise ValueError(f"ClientTLS: can't read {name} from {where}: {error}") from error
    if b"-----BEGIN " not in source or f"{kind}-----".encode() not in source:
        raise ValueError(f"ClientTLS: {name} ({where}) holds no {kind} in PEM form")
    return source
