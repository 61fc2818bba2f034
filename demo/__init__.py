"""`make demo`: the main job from end to end, on one machine, with a crash in the middle."""
