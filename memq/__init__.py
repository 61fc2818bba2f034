"""MemQ: a cloud-native PubSub system."""
