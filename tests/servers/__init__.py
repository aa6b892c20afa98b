"""Real servers that tests need: started for the session, stopped and killed by tests."""
