"""Tiroir: find near-duplicate documents, exactly, on PostgreSQL."""
