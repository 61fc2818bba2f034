"""Ask whether everything that was produced is stored, and whether groups have read all of it."""

import asyncio

from memq import audit_topic

result = asyncio.run(audit_topic(None, "clicks"))
for each in result.producers:
    print(f"{each.name.producer_id}: {each.produced_records} produced, {each.lost_records} lost")
print("verdict:", result.verdict)
