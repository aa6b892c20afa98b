"""Generated from proto/ by `python proto/generate.py`; never edited by hand.

Import the messages through `a2a_grpc.pb`: one process can hold only one set of A2A classes.
"""
