"""What this project adds to A2A on the wire: two extensions, and the call metadata they use.

A client asks for an extension by its URI; the server's card declares both (specification 4.6).
"""

from __future__ import annotations

SEQUENCE_EXTENSION = "urn:a2a-grpc:extensions:sequence:v1"
"""Clients that ask for it find sequence numbers in the metadata of the events."""

LAST_SEQUENCE = "last-event-id"
"""Call metadata with which a client resumes a stream: the last sequence number that it saw."""

RETRY_EXTENSION = "urn:a2a-grpc:extensions:retry:v1"
"""Declared by servers on which a message that is sent again runs once; `windowSeconds` in its
params says for how long."""

RETRY_MARK = "a2a-grpc-retry"
"""Call metadata with which a client says that it sends the message again."""
