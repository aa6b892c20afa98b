"""`python -m a2a_grpc`: the same as the command a2a-grpc."""

from a2a_grpc.cli import main

if __name__ == "__main__":
    main()
