"""The notification queue: embedded, or in Kafka, behind the seam of `memq.core.queue`."""
