-- live: every layout that has a table
SELECT id, widths, threshold, table_name, state FROM band_layout ORDER BY id

-- lock: shared, so that the layouts stay what they are until the transaction ends
SELECT pg_advisory_xact_lock_shared(%(lock)s::bigint)
