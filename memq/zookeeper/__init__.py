"""The coordination service: sessions with ZooKeeper, and what a cluster keeps there."""
