"""Many replicas on PostgreSQL and NATS: `python -m benchmarks --cluster`. See ../README.md."""
