"""The use-cases: each takes a connection, plans, and acts in one transaction."""
