"""Make a topic with columns of its own from a table, write the table, and read it as one."""

import pyarrow as pa

from memq import AdminClient, Producer, read_range
from memq.errors import TopicExistsError

rides = pa.table({"city": ["Oslo", "Lima", "Cork"], "fare": [12.5, 8.0, 9.25]})

with AdminClient() as admin:
    try:
        admin.create_topic("rides", schema=rides.schema)
    except TopicExistsError:
        print("the topic is there already")
with Producer(topic="rides") as producer:
    producer.write_table(rides)

read = read_range(topic="rides")
print(read.schema.names, "sum of fares:", sum(read["fare"].to_pylist()))
