"""Read one topic, change each record, write another, and commit what is stored. Ctrl-C ends it."""

import asyncio

from memq import AsyncConsumer, AsyncProducer


async def main() -> None:
    """Forward Batch by Batch."""
    async with (
        AsyncConsumer(topic="clicks", group="pipeline", start="earliest") as consumer,
        AsyncProducer(topic="clicks-upper") as producer,
    ):
        async for batch in consumer:
            for message in batch:
                await producer.write(message.value.upper(), key=message.key)
            await producer.flush()  # stored and published, so that the commit loses nothing
            await consumer.commit()
            print(f"{len(batch)} records forwarded")


try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("stopped")
