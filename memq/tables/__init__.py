"""Tables that commit each range of a topic once."""
