"""Producers: `Producer` for threads, `AsyncProducer` for asyncio."""
