"""The data format: Messages are Arrow RecordBatches, a Batch is an Arrow IPC stream with an index.

`docs/format.md` specifies it, byte by byte. The modules, from the inside out: `envelope` (Arrow
messages as bytes), `schema`, `message`, `index`, `batch` (building), `reader`, `verify`, `recover`.
"""
