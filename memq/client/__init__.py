"""Producers, consumers and administration."""
