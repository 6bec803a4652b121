-- lock: shared, so writes don't wait for one another; a change of layouts or a deletion of the collection does
SELECT pg_advisory_xact_lock_shared(%(layouts)s::bigint),
       pg_advisory_xact_lock_shared(%(collections)s::int, %(collection_id)s::int)

-- guard: what the write relies on, seen by a snapshot younger than the lock
SELECT array(SELECT id FROM band_layout ORDER BY id) AS layouts,
       EXISTS (SELECT FROM collection WHERE id = %(collection_id)s::int) AS collection_exists

-- upsert: no row comes back, and nothing was written, where the stored document has the same content
INSERT INTO document AS stored (collection_id, key, content_hash, simhash, bits, words, text, metadata)
SELECT %(collection_id)s::int, %(key)s::text, %(content_hash)s::bytea, %(simhash)s::bigint, %(bits)s::smallint,
       %(words)s::int, %(text)s::text, coalesce(%(metadata)s::jsonb, '{}')
WHERE NOT EXISTS (
    SELECT FROM document
    WHERE collection_id = %(collection_id)s::int AND key = %(key)s::text
      -- A text that has no hash is compared itself.
      AND (content_hash, simhash, words, metadata, CASE WHEN content_hash IS NULL THEN text END)
          IS NOT DISTINCT FROM
          (%(content_hash)s::bytea, %(simhash)s::bigint, %(words)s::int, coalesce(%(metadata)s::jsonb, metadata),
           CASE WHEN %(content_hash)s::bytea IS NULL THEN %(text)s::text END))
ON CONFLICT (collection_id, key) DO UPDATE
SET content_hash = excluded.content_hash, simhash = excluded.simhash, bits = excluded.bits, words = excluded.words,
    text = excluded.text, metadata = coalesce(%(metadata)s::jsonb, stored.metadata), updated_at = now()
WHERE (stored.content_hash, stored.simhash, stored.words, stored.metadata,
       CASE WHEN stored.content_hash IS NULL THEN stored.text END)
      IS DISTINCT FROM
      (excluded.content_hash, excluded.simhash, excluded.words, coalesce(%(metadata)s::jsonb, stored.metadata),
       CASE WHEN excluded.content_hash IS NULL THEN excluded.text END)
RETURNING xmax = 0 AS created

-- get: one document
SELECT key, simhash, content_hash, words, metadata, created_at, updated_at
FROM document
WHERE collection_id = %(collection_id)s::int AND key = %(key)s::text

-- page: documents after a key, in the order of their keys
SELECT key, simhash, content_hash, words, metadata, created_at, updated_at
FROM document
WHERE collection_id = %(collection_id)s::int AND key > %(after)s::text
ORDER BY key
LIMIT %(limit)s::int

-- sizes: the number of distinct fingerprints of each collection, the largest first
SELECT collection_id, count(*)
FROM (SELECT DISTINCT collection_id, simhash FROM document WHERE simhash IS NOT NULL) d
GROUP BY collection_id
ORDER BY count(*) DESC, collection_id

-- sample: about one in `one_in` fingerprints of a collection, another choice for each `seed`. By a hash, since any other
-- way of choosing some without reading all prefers some: neighbours in an index are alike
SELECT DISTINCT simhash FROM document
WHERE collection_id = %(collection_id)s::int AND simhash IS NOT NULL
  AND hashint8extended(simhash, %(seed)s::bigint) & (%(one_in)s::bigint - 1) = 0
LIMIT %(limit)s::int

-- scan: the documents within a threshold, by reading the fingerprints of all; the nearest first
SELECT key, simhash, bit_count((simhash # %(simhash)s::bigint)::bit(64)) AS distance
FROM document
WHERE collection_id = %(collection_id)s::int
  AND bit_count((simhash # %(simhash)s::bigint)::bit(64)) <= %(threshold)s::int
ORDER BY distance, simhash < 0, simhash, key
LIMIT %(limit)s::int

-- delete: one document; its fingerprint row stays, the join to documents hides it
DELETE FROM document
WHERE collection_id = %(collection_id)s::int AND key = %(key)s::text

-- exact_duplicates: documents of the same content, where there is no fingerprint to find them by
SELECT d.key, d.simhash, 0, true, d.metadata
FROM (SELECT FROM collection WHERE id = %(collection_id)s::int AND name = %(collection)s::text) c
LEFT JOIN document d
       ON d.collection_id = %(collection_id)s::int AND d.content_hash = %(content_hash)s::bytea
      AND d.key IS DISTINCT FROM %(except_key)s::text
ORDER BY d.key
LIMIT %(limit)s::int
