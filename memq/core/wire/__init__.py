"""The wire protocol as sans-I/O state machines.

`frame` cuts bytes into frames, `messages` lists every request and answer, `connection` states the
rules of a connection and holds its two ends.
"""
