"""Notifications in Kafka: `queue` has the theory, `confluent` alone knows Kafka's client."""
