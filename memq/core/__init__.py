"""The pure core: formats, protocol, state machines, decisions, and the seams to adapters.

It takes bytes, events and the time, and returns bytes and events. It imports nothing else of MemQ
but `memq.errors`, and no sockets, threads, event loops or drivers.
"""
