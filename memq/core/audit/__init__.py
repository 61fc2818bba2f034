"""The audit: produced against stored, and stored against consumed."""
