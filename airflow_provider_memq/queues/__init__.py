"""MemQ as a message queue of the common-messaging provider."""
