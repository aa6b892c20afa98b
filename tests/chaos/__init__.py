"""Server processes that die, freeze and lose what they depend on, and what holds all the same.

Every test runs real servers (`cluster`) on a PostgreSQL and a NATS of their own (`services`), with
agents that keep a journal (`agent`, `journal`). Clients choose their replicas themselves
(`clients`). In the end each `scene` proves from the outside: every task that a client was told of
comes to its end, and all replicas say the same of it; whoever followed a task got its log, without
a gap, a duplicate or another order, over however many connections; no task was executed twice at
once. A failure tells the whole story: journals, followers, logs of all processes.

`python -m tests.chaos.soak --minutes 30` goes on with random mishaps under load.
"""
