-- live: every layout that has a table
SELECT id, widths, threshold, table_name, state FROM band_layout ORDER BY id

-- lock: shared, so that the layouts stay what they are until the transaction ends
SELECT pg_advisory_xact_lock_shared(%(lock)s::bigint)

-- lock_alone: no write is under way, and none begins until the transaction ends
SELECT pg_advisory_xact_lock(%(lock)s::bigint)

-- register: a layout that is to be built; its table is named by its id
INSERT INTO band_layout (id, widths, threshold, table_name, state)
OVERRIDING SYSTEM VALUE
SELECT id, %(widths)s::smallint[], %(threshold)s::smallint, 'fingerprint_' || id, 'building'
FROM nextval(pg_get_serial_sequence('band_layout', 'id')) id
RETURNING id, widths, threshold, table_name, state

-- retire: the active layout; lookups of processes that remember it go on in its table
UPDATE band_layout SET state = 'retired' WHERE state = 'active'

-- activate: the layout that was built
UPDATE band_layout SET state = 'active' WHERE id = %(id)s::int AND state = 'building'

-- set_threshold: the default of lookups that name none
UPDATE band_layout SET threshold = %(threshold)s::smallint WHERE id = %(id)s::int

-- remove: the row; its table goes in the same transaction
DELETE FROM band_layout WHERE id = %(id)s::int

-- index_is_valid: null where there is no such index; not valid: its concurrent build was broken off
SELECT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass(%(name)s::text)

-- table_bytes: of a table with its indexes
SELECT pg_total_relation_size(%(table)s::regclass)

-- stale: tables of documents and of live layouts whose statistics are of another time
SELECT s.relname
FROM pg_stat_user_tables s
WHERE s.relid IN (SELECT to_regclass(quote_ident(table_name)) FROM band_layout UNION SELECT to_regclass('document'))
  AND s.n_mod_since_analyze >= greatest(%(rows)s::float, %(share)s::float * s.n_live_tup)
ORDER BY s.relname
