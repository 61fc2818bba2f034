"""Consumers: `Consumer` for threads, `AsyncConsumer` for asyncio."""
