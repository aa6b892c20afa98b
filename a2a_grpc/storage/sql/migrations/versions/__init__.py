"""The steps of the schema, oldest first by their numbers."""
