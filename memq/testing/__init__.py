"""Fakes and fault injection for tests of MemQ and of programs that use it."""
