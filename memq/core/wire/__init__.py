"""The wire protocol as sans-I/O state machines.

`frame` cuts bytes into frames, `messages` lists every request and answer, `connection` states the
rules of a connection and the events it tells, `server_connection` and `client_connection` are its
two ends.
"""
