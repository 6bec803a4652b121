-- find: one collection by name
SELECT id, name, tokenizer, shingle_size, bits, min_words, store_text, ttl, created_at
FROM collection
WHERE name = %(name)s::text

-- by_ids: collections by their ids
SELECT id, name, tokenizer, shingle_size, bits, min_words, store_text, ttl, created_at
FROM collection
WHERE id = ANY(%(ids)s::int[])
ORDER BY id

-- page: collections after a name, in the order of their names
SELECT id, name, tokenizer, shingle_size, bits, min_words, store_text, ttl, created_at
FROM collection
WHERE name > %(after)s::text
ORDER BY name
LIMIT %(limit)s::int

-- create: nothing happens, and no identity value is used up, where the name is taken already
INSERT INTO collection (name, tokenizer, shingle_size, bits, min_words, store_text, ttl)
SELECT %(name)s::text, %(tokenizer)s::text, %(shingle_size)s::smallint, %(bits)s::smallint, %(min_words)s::int,
       %(store_text)s::boolean, %(ttl)s::int
WHERE NOT EXISTS (SELECT FROM collection WHERE name = %(name)s::text)
ON CONFLICT (name) DO NOTHING
RETURNING id, name, tokenizer, shingle_size, bits, min_words, store_text, ttl, created_at

-- last_id: of the collections that there are, and of those that aren't purged: their documents count, too
SELECT greatest((SELECT max(id) FROM collection), (SELECT max(id) FROM deleted_collection), 0)

-- count: sizes of a collection; each part runs along one index. No row where the collection is gone
SELECT d.documents, f.fingerprints, d.documents - d.fingerprinted AS too_short,
       coalesce(e.exact_duplicates, 0) AS exact_duplicates
FROM (SELECT count(*) AS documents, count(simhash) AS fingerprinted
      FROM document WHERE collection_id = %(id)s::int) d,
     (SELECT count(*) AS fingerprints
      FROM (SELECT DISTINCT simhash FROM document
            WHERE collection_id = %(id)s::int AND simhash IS NOT NULL) s) f,
     (SELECT sum(documents)::bigint AS exact_duplicates
      FROM (SELECT count(*) AS documents FROM document
            WHERE collection_id = %(id)s::int AND content_hash IS NOT NULL
            GROUP BY content_hash HAVING count(*) > 1) h) e
WHERE EXISTS (SELECT FROM collection WHERE id = %(id)s::int)

-- delete: the row itself; what it held is purged later
WITH deleted AS (DELETE FROM collection WHERE id = %(id)s::int RETURNING id)
INSERT INTO deleted_collection (id) SELECT id FROM deleted

-- set_ttl: nobody may have noted until now when documents were seen
UPDATE collection SET ttl = %(ttl)s::int, ttl_since = now() WHERE id = %(id)s::int
RETURNING id, name, tokenizer, shingle_size, bits, min_words, store_text, ttl, created_at

-- deleted: collections that are to be purged
SELECT id FROM deleted_collection ORDER BY id

-- lock_deleted: one of them, unless another session purges it
SELECT FROM deleted_collection WHERE id = %(id)s::int FOR UPDATE SKIP LOCKED

-- forget_deleted: what was purged
DELETE FROM deleted_collection WHERE id = %(id)s::int

-- begin_expiry: a collection that wasn't looked through for a share of its ttl. Since that long may pass before it is
-- noted that a document was seen again, documents get as much longer
UPDATE collection SET expired_at = now()
WHERE id = (
    SELECT id FROM collection
    WHERE ttl IS NOT NULL
      AND coalesce(expired_at, ttl_since) < now() - make_interval(secs => ttl * %(share)s::float)
      AND ttl_since < now() - make_interval(secs => ttl * (1 + %(share)s::float))
    ORDER BY expired_at NULLS FIRST, id
    LIMIT 1
    FOR UPDATE SKIP LOCKED)
RETURNING id, ttl, now() - make_interval(secs => ttl * (1 + %(share)s::float)) AS seen_before

-- lock: waits until every write that is under way in the collection has ended, and keeps new ones out
SELECT pg_advisory_xact_lock(%(class)s::int, %(id)s::int)

-- lock_shared: as a write does: a deletion waits for it
SELECT pg_advisory_xact_lock_shared(%(class)s::int, %(id)s::int)
