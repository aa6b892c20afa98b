"""What the broker and the bus over NATS share: the URL, the connection, and names in subjects."""
